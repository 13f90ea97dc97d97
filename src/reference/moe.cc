// Mixture of experts, from the definitions: router, sorting of rows, and grouped GEMMs.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "reference/reference_ops.h"
#include "reference/values.h"

namespace athanor {
namespace {

const int32_t* ints(const Tensor& t) { return t.as<int32_t>(); }

int32_t checked(const char* what, int32_t index, int64_t limit) {
  CHECK(index >= 0 && index < limit, what, ": ", index, " is not below ", limit);
  return index;
}

struct Softmax {
  std::vector<double> p;
  double lse = 0;
};
Softmax softmax(const Values& logits, int64_t t) {
  double most = logits(t, 0), sum = 0;
  for (int64_t i = 0; i < logits.cols; ++i) most = std::max(most, logits(t, i));
  Softmax s{.p = std::vector<double>(size_t(logits.cols))};
  for (int64_t i = 0; i < logits.cols; ++i) sum += s.p[size_t(i)] = std::exp(logits(t, i) - most);
  for (double& p : s.p) p /= sum;
  s.lse = most + std::log(sum);
  return s;
}

// Scores of a token's experts, and their sum.
struct Scores {
  std::vector<double> of;
  double sum = 0;
};
Scores scores(RouterScore kind, const Values& logits, int64_t t) {
  if (kind == RouterScore::softmax) return {softmax(logits, t).p, 1};
  Scores s;
  for (int64_t i = 0; i < logits.cols; ++i) s.sum += s.of.emplace_back(sigmoid(logits(t, i)));
  return s;
}

// Returns indices of the k largest values, in descending order; among equal values the lower index comes first.
std::vector<int32_t> largest(const std::vector<double>& values, int64_t k) {
  std::vector<int32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return values[size_t(a)] > values[size_t(b)]; });
  order.resize(size_t(k));
  return order;
}

// Returns the selection values; those outside the chosen groups are below all others.
std::vector<double> selection(const RouteFwd& op, const Values& logits, int64_t t) {
  std::vector<double> values = op.selects_by_logit() ? std::vector<double>{} : scores(op.rule.score, logits, t).of;
  for (int64_t i = 0; i < logits.cols && op.selects_by_logit(); ++i) values.push_back(logits(t, i));
  for (size_t i = 0; i < values.size() && op.bias; ++i) values[i] += double(op.bias.as<float>()[i]);
  if (op.rule.groups == 1) return values;
  const size_t each = values.size() / size_t(op.rule.groups);
  std::vector<double> best;
  for (size_t g = 0; g < values.size(); g += each) {
    const std::vector<double> group(values.begin() + int64_t(g), values.begin() + int64_t(g + each));
    const std::vector<int32_t> two = largest(group, 2);
    best.push_back(group[size_t(two[0])] + (op.rule.by_largest ? 0 : group[size_t(two[1])]));
  }
  std::vector<bool> chosen(best.size());
  for (const int32_t g : largest(best, op.rule.chosen_groups)) chosen[size_t(g)] = true;
  for (size_t i = 0; i < values.size(); ++i)
    if (!chosen[i / each]) values[i] = -std::numeric_limits<double>::infinity();
  return values;
}

}  // namespace

void ReferenceOps::run(const RouteFwd& op, void*) {
  const Values logits = load(op.logits);  // [N, E]
  Values weights = zeros_like(op.weights);
  for (int64_t t = 0; t < logits.rows; ++t) {
    const std::vector<double> s = scores(op.rule.score, logits, t).of;
    const std::vector<int32_t> chosen = largest(selection(op, logits, t), weights.cols);
    double sum = double(RouterRule::kSumFloor);
    for (int64_t j = 0; j < weights.cols; ++j) {
      op.experts.as<int32_t>()[t * weights.cols + j] = chosen[size_t(j)];
      sum += weights(t, j) = s[size_t(chosen[size_t(j)])];
    }
    for (int64_t j = 0; j < weights.cols; ++j) weights(t, j) *= double(op.rule.factor) / (op.rule.normalize ? sum : 1);
  }
  store(op.weights, weights);
}

void ReferenceOps::run(const DropChoices& op, void*) {
  const Values weights = load(op.weights);
  const auto value = [&](int64_t slot) {
    return std::isnan(weights[slot]) ? -std::numeric_limits<double>::infinity() : weights[slot];
  };
  const int64_t slots = op.sequence * op.experts.cols();  // slots per sequence
  for (int64_t slot = 0; slot < op.experts.numel(); ++slot) {
    const int32_t expert = checked("drop_choices.experts", ints(op.experts)[slot], op.expert_count);
    const int64_t first = slot / slots * slots;
    int64_t ahead = 0;
    for (int64_t other = first; other < first + slots; ++other)
      ahead += ints(op.experts)[other] == expert &&
               (value(other) > value(slot) || (value(other) == value(slot) && other < slot));
    op.kept.as<int32_t>()[slot] = ahead < op.capacity ? expert : int32_t(op.expert_count);
  }
}

void ReferenceOps::run(const CountExperts& op, void*) {
  std::fill_n(op.counts.as<double>(), op.counts.numel(), 0.0);
  for (int64_t slot = 0; slot < op.experts.numel(); ++slot)
    ++op.counts.as<double>()[checked("count_experts.experts", ints(op.experts)[slot], op.counts.numel())];
}

void ReferenceOps::run(const ExpertLoads& op, void*) {
  double sum = 0;
  for (int64_t i = 0; i < op.counts.numel(); ++i) sum += op.running.as<double>()[i] += op.counts.as<double>()[i];
  for (int64_t i = 0; i < op.counts.numel(); ++i)
    op.loads.as<float>()[i] = float(op.running.as<double>()[i] * double(op.counts.numel()) / sum);
}

namespace {

// Returns the gradient of a token's scores, from the gradient of its weights.
std::vector<double> score_gradients(const RouteBwd& op, const std::vector<double>& s, const Values& dweights,
                                    int64_t t) {
  const int64_t k = dweights.cols;
  const int32_t* experts = ints(op.experts) + t * k;
  std::vector<double> ds(s.size());
  double sum = double(RouterRule::kSumFloor), weighted = 0;
  for (int64_t j = 0; j < k; ++j) sum += s[size_t(experts[j])], weighted += s[size_t(experts[j])] * dweights(t, j);
  for (int64_t j = 0; j < k; ++j)
    ds[size_t(experts[j])] =
        double(op.rule.factor) * (op.rule.normalize ? (dweights(t, j) - weighted / sum) / sum : dweights(t, j));
  return ds;
}

}  // namespace

void ReferenceOps::run(const RouteBwd& op, void*) {
  const Values logits = load(op.logits);
  Values dweights = load(op.dweights);
  const int64_t e = logits.cols, k = dweights.cols;
  const double scale = double(*op.scale.as<float>()) * double(op.inv_count);
  const RouterStatistics at{e};
  std::vector<double> gained(size_t(at.size()));
  for (int64_t slot = 0; slot < dweights.size() && op.kept; ++slot)
    if (checked("route_bwd.kept", ints(op.kept)[slot], e + 1) == e) dweights[slot] = 0, ++gained[size_t(at.dropped())];
  Values dlogits = zeros_like(op.dlogits);
  for (int64_t s = 0; s < op.sequences(); ++s) {
    std::vector<double> counts(static_cast<size_t>(e));
    const int64_t first = s * op.sequence;
    for (int64_t slot = first * k; slot < (first + op.sequence) * k; ++slot)
      ++counts[size_t(checked("route_bwd.experts", ints(op.experts)[slot], e))];
    for (int64_t i = 0; i < e; ++i) gained[size_t(i)] += counts[size_t(i)];
    double share = double(e) / (double(k) * double(op.sequence));  // factor in the balance loss
    if (op.loads) {
      share = 1;
      for (int64_t i = 0; i < e; ++i) counts[size_t(i)] = double(op.loads.as<float>()[i]);
    }
    for (int64_t t = first; t < first + op.sequence; ++t) {
      const auto [softmaxes, lse] = softmax(logits, t);
      const Scores token = scores(op.rule.score, logits, t);
      std::vector<double> ds = score_gradients(op, token.of, dweights, t);
      double inner = 0;  // dot product of the normalized scores and their gradients in the balance loss
      for (size_t i = 0; i < ds.size(); ++i) {
        const double p = token.of[i] / token.sum;
        inner += p * counts[i];
        if (p > 0) gained[size_t(at.entropy())] -= p * std::log(p);
        gained[size_t(at.balance())] += share * counts[i] * p;
      }
      for (size_t i = 0; i < ds.size(); ++i)
        ds[i] += scale * double(op.balance) * share * (counts[i] - inner) / token.sum;
      gained[size_t(at.squares())] += lse * lse;
      double weighted = 0;
      for (size_t i = 0; i < ds.size(); ++i) weighted += token.of[i] * ds[i];
      for (size_t i = 0; i < ds.size(); ++i) {
        const bool sigmoids = op.rule.score == RouterScore::sigmoid;
        const double through = sigmoids ? ds[i] * (1 - token.of[i]) : ds[i] - weighted;
        dlogits(t, int64_t(i)) = token.of[i] * through + softmaxes[i] * scale * double(op.z) * 2 * lse;
      }
    }
  }
  store(op.dlogits, dlogits);
  for (int64_t i = 0; i < e && op.counts; ++i) op.counts.as<double>()[i] += gained[size_t(i)];
  if (!op.statistics) return;
  for (size_t i = 0; i < gained.size(); ++i) op.statistics.as<double>()[i] += gained[i];
}

void ReferenceOps::run(const StepRouterBias& op, void*) {
  const auto& state = *reinterpret_cast<const StepState*>(op.state.as<uint8_t>());
  const int64_t e = op.bias.cols();
  for (int64_t l = 0; l < op.bias.rows(); ++l) {
    float* bias = op.bias.as<float>() + l * e;
    double *counts = op.counts.as<double>() + l * e, sum = 0;
    for (int64_t i = 0; i < e; ++i) sum += counts[i];
    for (int64_t i = 0; i < e; ++i) {
      const double below = sum - counts[i] * double(e);  // E (mean - count)
      if (!state.skip && below != 0) bias[i] += below > 0 ? op.rate : -op.rate;
      counts[i] = 0;
    }
  }
}

void ReferenceOps::run(const SortByExpert& op, void*) {
  const int64_t k = op.experts.cols(), dropped = op.expert_count();
  int32_t row = 0;
  for (int64_t e = 0; e <= dropped; ++e) {
    op.offsets.as<int32_t>()[e] = row;
    for (int64_t slot = 0; slot < op.experts.numel(); ++slot) {
      if (checked("sort_by_expert.experts", ints(op.experts)[slot], dropped + 1) != e) continue;
      op.tokens.as<int32_t>()[row] = int32_t(slot / k);
      op.slots.as<int32_t>()[row] = int32_t(slot);
      op.rows.as<int32_t>()[slot] = e < dropped ? row : -1;
      ++row;
    }
  }
}

void ReferenceOps::run(const SendSlots& op, void*) {
  const int64_t own = op.experts() / op.ranks, k = op.slots.cols();
  std::fill_n(op.counts.as<int32_t>(), op.experts(), 0);
  for (int64_t choice = 0; choice < op.slots.numel(); ++choice) op.slots.as<int32_t>()[choice] = -1;
  for (int64_t rank = 0; rank < op.ranks; ++rank) {
    const int64_t begin = ints(op.offsets)[rank * own], end = ints(op.offsets)[(rank + 1) * own];
    CHECK(op.least || end - begin <= op.capacity(), "send_slots: ", end - begin, " rows for ", op.capacity(), " slots");
    if (op.least && end - begin > op.capacity())
      *op.least.as<double>() = std::max(*op.least.as<double>(), op.factor_for(end - begin));
    for (int64_t e = rank * own; e < (rank + 1) * own; ++e)
      for (int64_t row = ints(op.offsets)[e]; row < ints(op.offsets)[e + 1]; ++row)
        op.counts.as<int32_t>()[e] += row < begin + op.capacity() ? 1 : 0;
    for (int64_t i = 0; i < op.capacity(); ++i) {
      const int64_t slot = rank * op.capacity() + i, row = begin + i;
      const int32_t choice = row < end ? checked("send_slots.sorted", ints(op.sorted)[row], op.slots.numel()) : 0;
      op.tokens.as<int32_t>()[slot] = int32_t(choice / k);
      op.choices.as<int32_t>()[slot] = choice;
      if (row < end) op.slots.as<int32_t>()[choice] = int32_t(slot);
    }
  }
  if (op.loss && *op.least.as<double>() > 0) *op.loss.as<double>() = std::numeric_limits<double>::infinity();
}

void ReferenceOps::run(const ReceiveSlots& op, void*) {
  const int64_t own = op.own(), first = op.rank * own;
  std::vector<int64_t> next(size_t(op.ranks()));  // next slot of each rank
  int32_t row = 0;
  const auto give = [&](int64_t rank) {
    const int64_t slot = rank * op.capacity() + next[size_t(rank)]++;
    op.slots.as<int32_t>()[row] = int32_t(slot);
    op.rows.as<int32_t>()[slot] = row++;
  };
  for (int64_t e = 0; e < own; ++e) {
    op.offsets.as<int32_t>()[e] = row;
    for (int64_t rank = 0; rank < op.ranks(); ++rank)
      for (int64_t i = 0; i < ints(op.counts)[rank * op.counts.cols() + first + e]; ++i) give(rank);
  }
  op.offsets.as<int32_t>()[own] = row;
  for (int64_t rank = 0; rank < op.ranks(); ++rank)
    while (next[size_t(rank)] < op.capacity()) give(rank);
}

void ReferenceOps::run(const SumRows& op, void*) {
  const Values x = load(op.x);  // [R, C]
  Values y = op.add ? load(op.add) : zeros_like(op.y);
  for (int64_t t = 0; t < y.rows; ++t)
    for (int64_t j = 0; j < op.rows.cols(); ++j) {
      if (ints(op.rows)[t * op.rows.cols() + j] < 0) continue;
      const int32_t row = checked("sum_rows.rows", ints(op.rows)[t * op.rows.cols() + j], x.rows);
      for (int64_t c = 0; c < y.cols; ++c) y(t, c) += x(row, c);
    }
  store(op.y, y);
}

void ReferenceOps::run(const WeightedSwigluFwd& op, void*) {
  const Values gu = load(op.gu), weights = load(op.weights);
  Values y = zeros_like(op.y);
  for (int64_t r = 0; r < y.rows; ++r) {
    const double weight = weights[checked("weighted_swiglu_fwd.slots", ints(op.slots)[r], weights.size())];
    for (int64_t c = 0; c < y.cols; ++c) y(r, c) = weight * gu(r, c) * sigmoid(gu(r, c)) * gu(r, y.cols + c);
  }
  store(op.y, y);
}

void ReferenceOps::run(const WeightedSwigluBwd& op, void*) {
  const Values dy = load(op.dy), gu = load(op.gu), weights = load(op.weights);
  Values dgu = zeros_like(op.dgu), dweights = zeros_like(op.dweights), y = zeros_like(op.y);
  for (int64_t r = 0; r < dy.rows; ++r) {
    const int32_t slot = checked("weighted_swiglu_bwd.slots", ints(op.slots)[r], weights.size());
    for (int64_t c = 0; c < dy.cols; ++c) {
      const double gate = gu(r, c), up = gu(r, dy.cols + c), s = sigmoid(gate), d = weights[slot] * dy(r, c);
      y(r, c) = weights[slot] * gate * s * up;
      dweights[slot] += dy(r, c) * gate * s * up;
      dgu(r, c) = d * up * s * (1 + gate * (1 - s));
      dgu(r, dy.cols + c) = d * gate * s;
    }
  }
  store(op.y, y);
  store(op.dgu, dgu);
  store(op.dweights, dweights);
}

void ReferenceOps::run(const GroupedGemm& op, void* scratch) {
  if (op.h) return in_parts(op, [&](const auto& part) { run(part, scratch); });
  const int32_t* offsets = ints(op.offsets);
  CHECK(offsets[0] == 0 && offsets[op.experts()] <= op.rows(), "grouped_gemm.offsets: from ", offsets[0], " to ",
        offsets[op.experts()], ", expected 0 to at most ", op.rows());
  for (int64_t e = 0; e < op.experts(); ++e) {
    CHECK(offsets[e] <= offsets[e + 1], "grouped_gemm.offsets: falling at expert ", e);
    if (offsets[e] < offsets[e + 1]) run(op.of_expert(e, offsets[e], offsets[e + 1]), nullptr);
  }
}

}  // namespace athanor
