// Mixture of experts: the router, the order of rows, and the activation of rows with a weight each. The router costs
// little compared with the GEMMs of the experts, so only its exponentials are vectorised.
#include <cmath>
#include <vector>

#include "cpu/chunks.h"
#include "cpu/cpu_ops.h"
#include "cpu/logistic.h"
#include "cpu/simd.h"
#include "cpu/vec.h"

namespace athanor {
namespace {

using simd::Vec;

// p[0, n) = softmax of x; returns log(sum(exp(x))). All NaN where one is.
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

// The k largest of x, as RouteFwd orders them; NaN is below all numbers.
void choose_largest(int32_t* chosen, const float* x, int64_t n, int64_t k, std::vector<uint8_t>& taken) {
  taken.assign(size_t(n), 0);
  for (int64_t j = 0; j < k; ++j) {
    int32_t best = -1;
    for (int64_t i = 0; i < n; ++i)
      if (!taken[size_t(i)] && (best < 0 || x[i] > x[best] || (std::isnan(x[best]) && !std::isnan(x[i]))))
        best = int32_t(i);
    taken[size_t(best)] = 1;
    chosen[j] = best;
  }
}

const int32_t* checked_indices(const char* op, const char* name, const Tensor& t, int64_t limit) {
  const int32_t* index = flat<int32_t>(t);
  for (int64_t i = 0; i < t.numel(); ++i)
    if (index[i] < 0 || index[i] >= limit)
      throw Error(cat(op, ": ", name, "[", i, "] = ", index[i], " is not below ", limit));
  return index;
}

}  // namespace

void CpuOps::run(const RouteFwd& op, void*) {
  const int64_t e = op.logits.cols(), k = op.weights.cols();
  const float* logits = flat<float>(op.logits);
  float* weights = flat<float>(op.weights);
  int32_t* experts = flat<int32_t>(op.experts);
  pool_.parallel_ranges(op.logits.rows(), row_grain(e * k), [&](int64_t begin, int64_t end) {
    std::vector<float> p(static_cast<size_t>(e));
    std::vector<uint8_t> taken;
    for (int64_t t = begin; t < end; ++t) {
      softmax_row(p.data(), logits + t * e, e);
      choose_largest(experts + t * k, logits + t * e, e, k, taken);
      float sum = 0;
      for (int64_t j = 0; j < k; ++j) sum += weights[t * k + j] = p[size_t(experts[t * k + j])];
      for (int64_t j = 0; op.normalize && j < k; ++j) weights[t * k + j] /= sum;
    }
  });
}

namespace {

// Scratch memory of RouteBwd: rows of each sequence at each expert, and what ranges of tokens add to the statistics.
struct RouteRoom {
  int64_t grain, chunks;
  size_t counts_bytes, bytes;
  explicit RouteRoom(const RouteBwd& op)
      : grain(row_grain(op.logits.cols())),
        chunks(div_ceil(op.logits.rows(), grain)),
        counts_bytes(size_t(round_up(op.sequences() * op.logits.cols(), int64_t{2})) * sizeof(float)),
        bytes(counts_bytes + size_t(chunks * RouterStatistics::kSums) * sizeof(double)) {}
};

struct TokenSums {
  double entropy = 0, balance = 0, squares = 0;
};

// Gradient of the probabilities of one token, before the softmax: dp gains what the weights give.
void add_weight_gradients(float* dp, const float* p, const int32_t* experts, const float* dweights, int64_t k,
                          bool normalize) {
  float sum = 1, weighted = 0;
  if (normalize) {
    sum = 0;
    for (int64_t j = 0; j < k; ++j) sum += p[experts[j]], weighted += p[experts[j]] * dweights[j];
    weighted /= sum;
  }
  for (int64_t j = 0; j < k; ++j) dp[experts[j]] += (dweights[j] - weighted) / sum;
}

}  // namespace

size_t CpuOps::scratch(const RouteBwd& op) const { return RouteRoom(op).bytes; }

void CpuOps::run(const RouteBwd& op, void* scratch) {
  const RouteRoom room(op);
  const int64_t n = op.logits.rows(), e = op.logits.cols(), k = op.dweights.cols();
  auto* counts = static_cast<float*>(scratch);  // [sequences, E]
  auto* sums = reinterpret_cast<double*>(static_cast<std::byte*>(scratch) + room.counts_bytes);
  const int32_t* experts = checked_indices(op.kName, "experts", op.experts, e);
  pool_.parallel_for(op.sequences(), [&](int64_t s) {
    std::fill(counts + s * e, counts + (s + 1) * e, 0.0f);
    for (int64_t slot = s * op.sequence * k; slot < (s + 1) * op.sequence * k; ++slot) ++counts[s * e + experts[slot]];
  });
  const float scale = *flat<float>(op.scale) * op.inv_count;
  const float share = float(double(e) / (double(k) * double(op.sequence)));
  const float *logits = flat<float>(op.logits), *dweights = flat<float>(op.dweights);
  pool_.parallel_ranges(n, room.grain, [&](int64_t begin, int64_t end) {
    std::vector<float> p(static_cast<size_t>(e)), dp(static_cast<size_t>(e));
    TokenSums gained;
    for (int64_t t = begin; t < end; ++t) {
      const float lse = softmax_row(p.data(), logits + t * e, e);
      const float* count = counts + t / op.sequence * e;
      float inner = 0, entropy = 0, balance = 0;
      for (size_t i = 0; i < p.size(); ++i) dp[i] = scale * op.balance * share * count[i];
      add_weight_gradients(dp.data(), p.data(), experts + t * k, dweights + t * k, k, op.normalize);
      for (size_t i = 0; i < p.size(); ++i) {
        inner += p[i] * dp[i];
        balance += count[i] * p[i];
        entropy += p[i] * (lse - logits[t * e + int64_t(i)]);
      }
      const float common = scale * op.z * 2 * lse - inner;
      by_float(op.dlogits.dtype, [&]<class T>() {
        for (size_t i = 0; i < p.size(); ++i)
          flat<T>(op.dlogits)[t * e + int64_t(i)] = from_float<T>(p[i] * (dp[i] + common));
      });
      gained.entropy += double(entropy), gained.balance += double(share * balance);
      gained.squares += double(lse) * double(lse);
    }
    double* to = sums + begin / room.grain * RouterStatistics::kSums;
    to[0] = gained.entropy, to[1] = gained.balance, to[2] = gained.squares;
  });
  if (!op.statistics) return;
  auto* statistics = flat<double>(op.statistics);
  for (int64_t s = 0; s < op.sequences(); ++s)
    for (int64_t i = 0; i < e; ++i) statistics[i] += double(counts[s * e + i]);
  for (int64_t chunk = 0; chunk < room.chunks; ++chunk)
    for (int64_t i = 0; i < RouterStatistics::kSums; ++i)
      statistics[e + i] += sums[chunk * RouterStatistics::kSums + i];
}

// Serial: a few operations for each row, against thousands in its products.
void CpuOps::run(const SortByExpert& op, void*) {
  const int64_t slots = op.experts.numel(), k = op.experts.cols(), e = op.expert_count();
  const int32_t* experts = checked_indices(op.kName, "experts", op.experts, e);
  int32_t *offsets = flat<int32_t>(op.offsets), *rows = flat<int32_t>(op.rows);
  int32_t *tokens = flat<int32_t>(op.tokens), *of_row = flat<int32_t>(op.slots);
  std::fill(offsets, offsets + e + 1, 0);
  for (int64_t slot = 0; slot < slots; ++slot) ++offsets[experts[slot] + 1];
  for (int64_t i = 0; i < e; ++i) offsets[i + 1] += offsets[i];
  std::vector<int32_t> next(offsets, offsets + e);
  for (int64_t slot = 0; slot < slots; ++slot) {
    const int32_t row = next[size_t(experts[slot])]++;
    rows[slot] = row;
    tokens[row] = int32_t(slot / k);
    of_row[row] = int32_t(slot);
  }
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
        for (int64_t j = 0; j < a.k; ++j) sum += at.load(a.x + a.rows[t * a.k + j] * a.cols);
        if (a.add) sum += at.load(a.add + t * a.cols);
        at.store(a.y + t * a.cols, sum);
      });
  }
};

template <class T>
struct WeightedRows {
  T *dgu, *y;  // dgu: of the gradient alone
  const T *dy, *gu;
  float* dweights;
  const float* weights;
  const int32_t* slots;
  int64_t f;
};
struct WeightedForward {
  template <int L, class T>
  static ATHANOR_INLINE void run(const WeightedRows<T>& a, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const T *gate = a.gu + i * 2 * a.f, *up = gate + a.f;
      const float weight = a.weights[a.slots[i]];
      simd::for_columns<L, T>(a.f, [&](auto at) ATHANOR_INLINE_LAMBDA {
        const Vec<L> g = at.load(gate);
        at.store(a.y + i * a.f, g * logistic(g).of * at.load(up) * weight);
      });
    }
  }
};
// Each element is read before it is written, as dgu may be gu, and y dy.
struct WeightedBackward {
  template <int L, class T>
  static ATHANOR_INLINE void run(const WeightedRows<T>& a, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const T *gate = a.gu + i * 2 * a.f, *up = gate + a.f;
      T *dgate = a.dgu + i * 2 * a.f, *dup = dgate + a.f;
      const float weight = a.weights[a.slots[i]];
      Vec<L> sum = simd::broadcast<L>(0);
      simd::for_columns<L, T>(a.f, [&](auto at) ATHANOR_INLINE_LAMBDA {
        const Vec<L> g = at.load(gate), u = at.load(up), d = at.load(a.dy + i * a.f);
        const Logistic<L> s = logistic(g);
        const Vec<L> y = g * s.of * u, ds = d * weight * s.of;
        sum += d * y;
        at.store(dgate, ds * u * (1.0f + g * s.of_minus));
        at.store(dup, ds * g);
        at.store(a.y + i * a.f, y * weight);
      });
      a.dweights[a.slots[i]] = simd::sum(sum);
    }
  }
};

}  // namespace

void CpuOps::run(const SumRows& op, void*) {
  const int32_t* rows = checked_indices(op.kName, "rows", op.rows, op.x.rows());
  by_float(op.x.dtype, [&]<class T>() {
    const SummedRows<T> a{flat<T>(op.y), flat<T>(op.x),  op.add ? flat<T>(op.add) : nullptr,
                          rows,          op.rows.cols(), op.x.cols()};
    pool_.parallel_ranges(op.y.rows(), row_grain(op.x.cols()),
                          [&](int64_t begin, int64_t end) { simd::dispatch<SumOfRows>(a, begin, end); });
  });
}

void CpuOps::run(const WeightedSwigluFwd& op, void*) {
  const int32_t* slots = checked_indices(op.kName, "slots", op.slots, op.weights.numel());
  by_float(op.gu.dtype, [&]<class T>() {
    const WeightedRows<T> a{nullptr, flat<T>(op.y),           nullptr, flat<T>(op.gu),
                            nullptr, flat<float>(op.weights), slots,   op.y.cols()};
    pool_.parallel_ranges(op.y.rows(), row_grain(op.y.cols()),
                          [&](int64_t begin, int64_t end) { simd::dispatch<WeightedForward>(a, begin, end); });
  });
}

void CpuOps::run(const WeightedSwigluBwd& op, void*) {
  const int32_t* slots = checked_indices(op.kName, "slots", op.slots, op.weights.numel());
  by_float(op.gu.dtype, [&]<class T>() {
    const WeightedRows<T> a{flat<T>(op.dgu),          flat<T>(op.y),           flat<T>(op.dy), flat<T>(op.gu),
                            flat<float>(op.dweights), flat<float>(op.weights), slots,          op.dy.cols()};
    pool_.parallel_ranges(op.dy.rows(), row_grain(op.dy.cols()),
                          [&](int64_t begin, int64_t end) { simd::dispatch<WeightedBackward>(a, begin, end); });
  });
}

}  // namespace athanor
