// Mixture of experts: the router, sorting of rows, and sums of rows. The router costs little compared with the experts'
// GEMMs, so only its exponentials are vectorized.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "cpu/chunks.h"
#include "cpu/cpu_ops.h"
#include "cpu/indices.h"
#include "cpu/simd.h"
#include "cpu/update.h"
#include "cpu/vec.h"

namespace athanor {
namespace {

using simd::Vec;

// p[0, n) = softmax of x; returns log(sum(exp(x))). If an element is NaN, all results are NaN.
ATHANOR_CLONES float softmax_row(float* p, const float* x, int64_t n) {
  float most = x[0], sum = 0;
  for (int64_t i = 1; i < n; ++i) most = x[i] > most ? x[i] : most;
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) p[i] = fast_exp(x[i] - most);
  for (int64_t i = 0; i < n; ++i) sum += p[i];
  const float by = 1.0f / sum;
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) p[i] *= by;
  return most + std::log(sum);
}

// s[0, n) = the sigmoid of x; returns their sum.
ATHANOR_CLONES float sigmoid_row(float* s, const float* x, int64_t n) {
  float sum = 0;
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) s[i] = 1.0f / (1.0f + fast_exp(-x[i]));
  for (int64_t i = 0; i < n; ++i) sum += s[i];
  return sum;
}

// True if a sorts before b in descending order with NaN last.
bool is_larger(float a, float b) { return a > b || (std::isnan(b) && !std::isnan(a)); }

// Chooses the k largest elements of x that are not taken, in RouteFwd's order.
void choose_largest(int32_t* chosen, const float* x, int64_t n, int64_t k, std::vector<uint8_t>& taken) {
  for (int64_t j = 0; j < k; ++j) {
    int32_t best = -1;
    for (int64_t i = 0; i < n; ++i)
      if (!taken[size_t(i)] && (best < 0 || is_larger(x[i], x[best]))) best = int32_t(i);
    taken[size_t(best)] = 1;
    chosen[j] = best;
  }
}

// Sum of the two largest elements of x[0, n).
float two_largest(const float* x, int64_t n) {
  float first = x[0], second = x[1];
  if (is_larger(second, first)) std::swap(first, second);
  for (int64_t i = 2; i < n; ++i) {
    if (is_larger(x[i], first))
      second = std::exchange(first, x[i]);
    else if (is_larger(x[i], second))
      second = x[i];
  }
  return first + second;
}

// Chooses the experts of one token after the other.
class Chooser {
 public:
  explicit Chooser(const RouteFwd& op) : op_(op), values_(size_t(op.logits.cols())) {}
  // scores: null if logits are compared
  void operator()(int32_t* chosen, const float* logits, const float* scores) {
    const int64_t e = op_.logits.cols(), k = op_.weights.cols();
    taken_.assign(size_t(e), 0);
    if (op_.selects_by_logit()) return choose_largest(chosen, logits, e, k, taken_);
    const float* bias = op_.bias ? flat<float>(op_.bias) : nullptr;
    for (int64_t i = 0; i < e; ++i) values_[size_t(i)] = scores[i] + (bias ? bias[i] : 0.0f);
    if (op_.rule.groups > 1) leave_best_groups();
    choose_largest(chosen, values_.data(), e, k, taken_);
  }

 private:
  void leave_best_groups() {
    const int64_t groups = op_.rule.groups, each = op_.logits.cols() / groups;
    best_.resize(size_t(groups));
    groups_.resize(size_t(op_.rule.chosen_groups));
    for (int64_t g = 0; g < groups; ++g) {
      const float* group = values_.data() + g * each;
      best_[size_t(g)] = op_.rule.by_largest
                             ? *std::max_element(group, group + each, [](float a, float b) { return is_larger(b, a); })
                             : two_largest(group, each);
    }
    taken_groups_.assign(size_t(groups), 0);
    choose_largest(groups_.data(), best_.data(), groups, op_.rule.chosen_groups, taken_groups_);
    for (int64_t g = 0; g < groups; ++g)
      if (!taken_groups_[size_t(g)]) std::fill_n(taken_.begin() + g * each, each, uint8_t{1});
  }

  const RouteFwd& op_;
  std::vector<float> values_, best_;
  std::vector<uint8_t> taken_, taken_groups_;
  std::vector<int32_t> groups_;
};

}  // namespace

void CpuOps::run(const RouteFwd& op, void*) {
  const int64_t e = op.logits.cols(), k = op.weights.cols();
  const float* logits = flat<float>(op.logits);
  float* weights = flat<float>(op.weights);
  int32_t* experts = flat<int32_t>(op.experts);
  pool_.parallel_ranges(op.logits.rows(), row_grain(e * k), [&](int64_t begin, int64_t end) {
    std::vector<float> p(static_cast<size_t>(e));
    Chooser choose(op);
    for (int64_t t = begin; t < end; ++t) {
      if (op.rule.score == RouterScore::sigmoid)
        sigmoid_row(p.data(), logits + t * e, e);
      else
        softmax_row(p.data(), logits + t * e, e);
      choose(experts + t * k, logits + t * e, p.data());
      float sum = RouterRule::kSumFloor;
      for (int64_t j = 0; j < k; ++j) sum += weights[t * k + j] = p[size_t(experts[t * k + j])];
      for (int64_t j = 0; op.rule.normalize && j < k; ++j) weights[t * k + j] /= sum;
      for (int64_t j = 0; op.rule.factor != 1 && j < k; ++j) weights[t * k + j] *= op.rule.factor;
    }
  });
}

void CpuOps::run(const DropChoices& op, void*) {
  const int64_t slots = op.sequence * op.experts.cols(), most = op.capacity;
  const int32_t* experts = checked_indices(op.kName, "experts", op.experts, op.expert_count);
  const float* weights = flat<float>(op.weights);
  int32_t* kept = flat<int32_t>(op.kept);
  const auto before = [&](int32_t a, int32_t b) {
    return is_larger(weights[a], weights[b]) || (!is_larger(weights[b], weights[a]) && a < b);
  };
  pool_.parallel_for(op.sequences(), [&](int64_t s) {
    std::vector<std::vector<int32_t>> of_expert(size_t(op.expert_count));
    for (int64_t slot = s * slots; slot < (s + 1) * slots; ++slot) {
      kept[slot] = experts[slot];
      of_expert[size_t(experts[slot])].push_back(int32_t(slot));
    }
    for (std::vector<int32_t>& own : of_expert) {
      if (int64_t(own.size()) <= most) continue;
      std::nth_element(own.begin(), own.begin() + most, own.end(), before);
      for (size_t i = size_t(most); i < own.size(); ++i) kept[own[i]] = int32_t(op.expert_count);
    }
  });
}

namespace {

// Layout of RouteBwd's scratch memory: number of rows of each sequence at each expert, and the statistics of chunks of
// tokens.
struct RouteWorkspace {
  int64_t grain, chunks;
  size_t counts_bytes, bytes;
  explicit RouteWorkspace(const RouteBwd& op)
      : grain(row_grain(op.logits.cols())),
        chunks(div_ceil(op.logits.rows(), grain)),
        counts_bytes(size_t(round_up(op.sequences() * op.logits.cols(), int64_t{2})) * sizeof(float)),
        bytes(counts_bytes + size_t(chunks * RouterStatistics::kSums) * sizeof(double)) {}
};

struct TokenSums {
  double entropy = 0, balance = 0, squares = 0, dropped = 0;
};

// Adds the gradient through the weights of one token to dp, the gradient of its scores.
void add_weight_gradients(float* dp, const float* p, const int32_t* experts, const float* dweights, int64_t k,
                          const RouterRule& rule) {
  float sum = 1, weighted = 0;
  if (rule.normalize) {
    sum = RouterRule::kSumFloor;
    for (int64_t j = 0; j < k; ++j) sum += p[experts[j]], weighted += p[experts[j]] * dweights[j];
    weighted /= sum;
  }
  for (int64_t j = 0; j < k; ++j) dp[experts[j]] += rule.factor * ((dweights[j] - weighted) / sum);
}

// RouteBwd for one token, with buffers.
struct TokenGradient {
  const RouteBwd& op;
  float scale, share;                // factors of the losses, and of count * probability in the balance loss
  std::vector<float> p, scores, dp;  // [E]: softmax; sigmoids, if they are the scores; result
  std::vector<float> dweights;       // [k]: 0 for dropped choices
  TokenGradient(const RouteBwd& of, float scale_, float share_)
      : op(of),
        scale(scale_),
        share(share_),
        p(size_t(of.logits.cols())),
        scores(p.size()),
        dp(p.size()),
        dweights(size_t(of.dweights.cols())) {}

  // count: rows of the token's sequence at each expert, or op.loads. dp becomes the gradient of the logits.
  void run(int64_t t, const float* count, TokenSums& gained) {
    const int64_t e = op.logits.cols(), k = op.dweights.cols();
    const float* logits = flat<float>(op.logits) + t * e;
    const float lse = softmax_row(p.data(), logits, e);
    gained.squares += double(lse) * double(lse);
    for (int64_t j = 0; j < k; ++j) {
      const bool dropped = op.kept && flat<int32_t>(op.kept)[t * k + j] == e;
      dweights[size_t(j)] = dropped ? 0 : flat<float>(op.dweights)[t * k + j];
      gained.dropped += dropped;
    }
    if (op.rule.score == RouterScore::softmax)
      through_softmax(t * k, count, logits, lse, gained);
    else
      through_sigmoids(t * k, count, logits, lse, gained);
  }

 private:
  void add_weights(int64_t slot, const std::vector<float>& s) {
    add_weight_gradients(dp.data(), s.data(), flat<int32_t>(op.experts) + slot, dweights.data(), op.dweights.cols(),
                         op.rule);
  }
  void through_softmax(int64_t slot, const float* count, const float* logits, float lse, TokenSums& gained) {
    float inner = 0, entropy = 0, balance = 0;
    for (size_t i = 0; i < p.size(); ++i) dp[i] = scale * op.balance * share * count[i];
    add_weights(slot, p);
    for (size_t i = 0; i < p.size(); ++i) {
      inner += p[i] * dp[i];
      balance += count[i] * p[i];
      entropy += p[i] * (lse - logits[i]);
    }
    const float common = scale * op.z * 2 * lse - inner;
    for (size_t i = 0; i < p.size(); ++i) dp[i] = p[i] * (dp[i] + common);
    gained.entropy += double(entropy), gained.balance += double(share * balance);
  }
  void through_sigmoids(int64_t slot, const float* count, const float* logits, float lse, TokenSums& gained) {
    const float by = 1.0f / sigmoid_row(scores.data(), logits, op.logits.cols());
    float entropy = 0, balance = 0;
    for (size_t i = 0; i < p.size(); ++i) {
      const float q = scores[i] * by;
      balance += count[i] * q;
      if (q > 0) entropy -= q * std::log(q);
    }
    for (size_t i = 0; i < p.size(); ++i) dp[i] = scale * op.balance * share * (count[i] - balance) * by;
    add_weights(slot, scores);
    for (size_t i = 0; i < p.size(); ++i) dp[i] = dp[i] * scores[i] * (1 - scores[i]) + scale * op.z * 2 * lse * p[i];
    gained.entropy += double(entropy), gained.balance += double(share * balance);
  }
};

}  // namespace

void CpuOps::run(const CountExperts& op, void*) {
  auto* counts = flat<double>(op.counts);
  const int32_t* experts = checked_indices(op.kName, "experts", op.experts, op.counts.numel());
  std::fill_n(counts, op.counts.numel(), 0.0);
  for (int64_t slot = 0; slot < op.experts.numel(); ++slot) ++counts[experts[slot]];
}

void CpuOps::run(const ExpertLoads& op, void*) {
  auto* running = flat<double>(op.running);
  const int64_t e = op.counts.numel();
  for (int64_t i = 0; i < e; ++i) running[i] += flat<double>(op.counts)[i];
  const double sum = std::accumulate(running, running + e, 0.0);  // exact: counts are whole numbers
  for (int64_t i = 0; i < e; ++i) flat<float>(op.loads)[i] = float(running[i] * double(e) / sum);
}

size_t CpuOps::scratch(const RouteBwd& op) const { return RouteWorkspace(op).bytes; }

void CpuOps::run(const RouteBwd& op, void* scratch) {
  const RouteWorkspace workspace(op);
  const int64_t n = op.logits.rows(), e = op.logits.cols(), k = op.dweights.cols();
  auto* counts = static_cast<float*>(scratch);  // [sequences, E]
  auto* sums = reinterpret_cast<double*>(static_cast<std::byte*>(scratch) + workspace.counts_bytes);
  const int32_t* experts = checked_indices(op.kName, "experts", op.experts, e);
  pool_.parallel_for(op.sequences(), [&](int64_t s) {
    std::fill(counts + s * e, counts + (s + 1) * e, 0.0f);
    for (int64_t slot = s * op.sequence * k; slot < (s + 1) * op.sequence * k; ++slot) ++counts[s * e + experts[slot]];
  });
  const float scale = *flat<float>(op.scale) * op.inv_count;
  const auto* loads = flat<float>(op.loads);
  pool_.parallel_ranges(n, workspace.grain, [&](int64_t begin, int64_t end) {
    TokenGradient token(op, scale, op.load_of_choice());
    TokenSums gained;
    for (int64_t t = begin; t < end; ++t) {
      token.run(t, op.loads ? loads : counts + t / op.sequence * e, gained);
      by_float(op.dlogits.dtype, [&]<class T>() {
        for (int64_t i = 0; i < e; ++i) flat<T>(op.dlogits)[t * e + i] = from_float<T>(token.dp[size_t(i)]);
      });
    }
    double* to = sums + begin / workspace.grain * RouterStatistics::kSums;
    to[0] = gained.entropy, to[1] = gained.balance, to[2] = gained.squares, to[3] = gained.dropped;
  });
  for (const Tensor& to : {op.statistics, op.counts})
    for (int64_t s = 0; s < op.sequences() && to; ++s)
      for (int64_t i = 0; i < e; ++i) flat<double>(to)[i] += double(counts[s * e + i]);
  if (!op.statistics) return;
  auto* statistics = flat<double>(op.statistics);
  for (int64_t chunk = 0; chunk < workspace.chunks; ++chunk)
    for (int64_t i = 0; i < RouterStatistics::kSums; ++i)
      statistics[e + i] += sums[chunk * RouterStatistics::kSums + i];
}

void CpuOps::run(const StepRouterBias& op, void*) {
  const bool skip = update::state_of(op.state).skip != 0;
  const int64_t e = op.bias.cols();
  for (int64_t l = 0; l < op.bias.rows(); ++l) {
    float* bias = flat<float>(op.bias) + l * e;
    double* counts = flat<double>(op.counts) + l * e;
    const double sum = std::accumulate(counts, counts + e, 0.0);  // exact: counts are whole numbers
    for (int64_t i = 0; i < e; ++i) {
      const double below = sum - counts[i] * double(e);
      if (!skip && below != 0) bias[i] += below > 0 ? op.rate : -op.rate;
      counts[i] = 0;
    }
  }
}

// Serial: a few operations per row, against thousands in its GEMMs.
void CpuOps::run(const SortByExpert& op, void*) {
  const int64_t slots = op.experts.numel(), k = op.experts.cols(), e = op.expert_count();
  const int32_t* experts = checked_indices(op.kName, "experts", op.experts, e + 1);
  int32_t *offsets = flat<int32_t>(op.offsets), *rows = flat<int32_t>(op.rows);
  int32_t *tokens = flat<int32_t>(op.tokens), *of_row = flat<int32_t>(op.slots);
  std::fill(offsets, offsets + e + 1, 0);
  for (int64_t slot = 0; slot < slots; ++slot)
    if (experts[slot] < e) ++offsets[experts[slot] + 1];
  for (int64_t i = 0; i < e; ++i) offsets[i + 1] += offsets[i];
  std::vector<int32_t> next(offsets, offsets + e + 1);  // dropped choices follow the last expert
  for (int64_t slot = 0; slot < slots; ++slot) {
    const int32_t row = next[size_t(experts[slot])]++;
    rows[slot] = experts[slot] < e ? row : -1;
    tokens[row] = int32_t(slot / k);
    of_row[row] = int32_t(slot);
  }
}

// Serial, like SortByExpert.
void CpuOps::run(const SendSlots& op, void*) {
  const int64_t own = op.experts() / op.ranks, k = op.slots.cols(), rows = op.slots.numel();
  const auto *offsets = flat<int32_t>(op.offsets), *sorted = checked_indices(op.kName, "sorted", op.sorted, rows);
  int32_t *tokens = flat<int32_t>(op.tokens), *choices = flat<int32_t>(op.choices), *slots = flat<int32_t>(op.slots);
  if (offsets[0] != 0 || offsets[op.experts()] > rows)
    throw Error(
        cat(op.kName, ": offsets from ", offsets[0], " to ", offsets[op.experts()], ", expected 0 to at most ", rows));
  double* least = op.least ? flat<double>(op.least) : nullptr;
  std::fill(tokens, tokens + op.tokens.numel(), 0);
  std::fill(choices, choices + op.choices.numel(), 0);
  std::fill(slots, slots + rows, -1);
  for (int64_t rank = 0; rank < op.ranks; ++rank) {
    const int64_t begin = offsets[rank * own], count = offsets[(rank + 1) * own] - begin, end = begin + op.capacity();
    if (count < 0 || (count > op.capacity() && !least))
      throw Error(cat(op.kName, ": ", count, " rows for rank ", rank, ", which has ", op.capacity(), " slots"));
    if (count > op.capacity()) *least = std::max(*least, op.factor_for(count));
    for (int64_t e = rank * own; e < (rank + 1) * own; ++e)
      flat<int32_t>(op.counts)[e] =
          int32_t(std::min<int64_t>(offsets[e + 1], end) - std::min<int64_t>(offsets[e], end));
    for (int64_t i = 0; i < std::min(count, op.capacity()); ++i) {
      const int64_t slot = rank * op.capacity() + i;
      const int32_t choice = sorted[begin + i];
      tokens[slot] = int32_t(choice / k);
      choices[slot] = choice;
      slots[choice] = int32_t(slot);
    }
  }
  if (op.loss && *least > 0) *flat<double>(op.loss) = std::numeric_limits<double>::infinity();
}

void CpuOps::run(const ReceiveSlots& op, void*) {
  const int64_t own = op.own(), ranks = op.ranks(), capacity = op.capacity();
  const auto* counts = flat<int32_t>(op.counts) + op.rank * own;  // [ranks, own] in rows of E
  int32_t *offsets = flat<int32_t>(op.offsets), *slots = flat<int32_t>(op.slots), *rows = flat<int32_t>(op.rows);
  std::vector<int64_t> next(static_cast<size_t>(ranks));
  int32_t row = 0;
  const auto give = [&](int64_t rank, int64_t count) {
    int64_t& used = next[size_t(rank)];
    if (count < 0 || used + count > capacity)
      throw Error(cat(op.kName, ": ", used + count, " rows from rank ", rank, ", which has ", capacity, " slots"));
    for (int64_t i = 0; i < count; ++i, ++row) {
      const int64_t slot = rank * capacity + used++;
      slots[row] = int32_t(slot);
      rows[slot] = row;
    }
  };
  for (int64_t e = 0; e < own; ++e) {
    offsets[e] = row;
    for (int64_t rank = 0; rank < ranks; ++rank) give(rank, counts[rank * op.counts.cols() + e]);
  }
  offsets[own] = row;
  for (int64_t rank = 0; rank < ranks; ++rank) give(rank, capacity - next[size_t(rank)]);
}

namespace {

template <class T>
struct SummedRows {
  T* y;
  const T *x, *add;  // add may be null
  const int32_t* rows;
  int64_t k, cols;
};
struct SumOfRows {
  template <int L, class T>
  static ATHANOR_INLINE void run(const SummedRows<T>& a, int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      simd::for_columns<L, T>(a.cols, [&](auto at) ATHANOR_INLINE_LAMBDA {
        Vec<L> sum = simd::broadcast<L>(0);
        for (int64_t j = 0; j < a.k; ++j)
          if (a.rows[t * a.k + j] >= 0) sum += at.load(a.x + a.rows[t * a.k + j] * a.cols);
        if (a.add) sum += at.load(a.add + t * a.cols);
        at.store(a.y + t * a.cols, sum);
      });
  }
};

}  // namespace

void CpuOps::run(const SumRows& op, void*) {
  const int32_t* rows = checked_indices(op.kName, "rows", op.rows, op.x.rows(), -1);
  by_float(op.x.dtype, [&]<class T>() {
    const SummedRows<T> a{flat<T>(op.y), flat<T>(op.x),  op.add ? flat<T>(op.add) : nullptr,
                          rows,          op.rows.cols(), op.x.cols()};
    pool_.parallel_ranges(op.y.rows(), row_grain(op.x.cols()),
                          [&](int64_t begin, int64_t end) { simd::dispatch<SumOfRows>(a, begin, end); });
  });
}

}  // namespace athanor
