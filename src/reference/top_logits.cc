// A teacher's largest logits, and a student's loss against them, row by row.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "reference/reference_ops.h"
#include "reference/values.h"

namespace athanor {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

double slope(double z, float softcap) {
  if (softcap == 0) return 1;
  const double cosine = std::cosh(z / double(softcap));
  return 1 / (cosine * cosine);
}

// Returns a log(a / b) from the logarithms of a and b; 0 if a is 0.
double term(double log_a, double log_b) { return log_a == -kInf ? 0 : std::exp(log_a) * (log_a - log_b); }

// The events of a row: its top tokens, and all other tokens as one.
struct Events {
  std::vector<double> top;  // log probabilities
  double rest;
  void normalize() {
    double sum = std::exp(rest);
    for (const double x : top) sum += std::exp(x);
    for (double& x : top) x -= std::log(sum);
    rest -= std::log(sum);
  }
};

double sign(double x) { return x > 0 ? 1 : x < 0 ? -1 : 0; }  // 0 for NaN

// Sums over the events: of |q - p|, and of q times the sign of q - p.
struct SortedDifference {
  double distance = 0, signed_q = 0;
  void add(double log_q, double log_p) {
    distance += std::abs(std::exp(log_q) - std::exp(log_p));
    signed_q += sign(log_q - log_p) * std::exp(log_q);
  }
};

double divergence(const Events& a, const Events& b) {
  double sum = term(a.rest, b.rest);
  for (size_t j = 0; j < a.top.size(); ++j) sum += term(a.top[j], b.top[j]);
  return sum;
}

}  // namespace

void ReferenceOps::run(const TopLogits& op, void*) {
  Values values = zeros_like(op.values), rest = zeros_like(op.rest);
  const int64_t k = op.ids.cols();
  for (int64_t i = 0; i < op.logits.rows(); ++i) {
    const Values z = load(op.logits.slice(i, i + 1));
    std::vector<int32_t> order(size_t(op.vocab));
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(
        order, [&](int32_t a, int32_t b) { return z[a] > z[b] || (std::isnan(z[b]) && !std::isnan(z[a])); });
    const auto at = [&](int64_t j) { return capped(z[order[size_t(j)]], op.softcap); };
    for (int64_t j = 0; j < k; ++j) op.ids.as<int32_t>()[i * k + j] = order[size_t(j)], values(i, j) = at(j) - at(0);
    double sum = 0;
    for (int64_t j = k; j < op.vocab; ++j) sum += std::exp((at(j) - at(k)) / double(op.temperature));
    rest[i] = k == op.vocab ? -kInf : (at(k) - at(0)) / double(op.temperature) + std::log(sum);
  }
  store(op.values, values);
  store(op.rest, rest);
}

void ReferenceOps::run(const PickLogits& op, void*) {
  Values picked = zeros_like(op.picked), rest = zeros_like(op.picked_rest);
  const Values max = load(op.max);
  const int64_t k = op.ids.cols();
  for (int64_t i = 0; i < op.logits.rows(); ++i) {
    if (op.targets.as<int32_t>()[i] < 0) continue;
    const Values z = load(op.logits.slice(i, i + 1));
    std::vector<bool> is_top(size_t(op.part.count));
    for (int64_t j = 0; j < k; ++j) {
      const int32_t row = op.part.row(op.ids.as<int32_t>()[i * k + j]);
      if (row >= 0) picked(i, j) = z[row], is_top[size_t(row)] = true;
    }
    const double most = exponent_base(capped(max[i], op.softcap));
    for (int64_t c = 0; c < op.part.count; ++c)
      if (!is_top[size_t(c)]) rest[i] += std::exp((capped(z[c], op.softcap) - most) / double(op.temperature));
  }
  store(op.picked, picked);
  store(op.picked_rest, rest);
}

void ReferenceOps::run(const CachedDistilledCrossEntropy& op, void*) {
  Values losses = zeros_like(op.losses), divergences = zeros_like(op.divergences);
  const Values max = load(op.max), sums = load(op.sums), values = load(op.values), rest = load(op.rest),
               picked = load(op.picked), picked_rest = load(op.picked_rest);
  const int64_t k = op.ids.cols();
  const double t = op.temperature, weight = load(op.scale)[0] * double(op.inv_count);
  const bool forward = op.kind == DistillLoss::kl, sorted = op.kind == DistillLoss::uld;
  for (int64_t i = 0; i < op.logits.rows(); ++i) {
    const Tensor row = op.logits.slice(i, i + 1);
    const int32_t target = op.targets.as<int32_t>()[i];
    CHECK(target < op.part.total, "cached_distilled_cross_entropy.targets: entry ", i, " is ", target,
          " of a vocabulary of ", op.part.total);
    Values gradient = zeros_like(row);
    if (target >= 0) {
      const Values z = load(row);
      const double most = exponent_base(capped(max[i], op.softcap));
      Events p{.top = {}, .rest = rest[i]}, q{.top = {}, .rest = std::log(picked_rest[i])};
      for (int64_t j = 0; j < k; ++j) {
        p.top.push_back(values(i, j) / t);
        q.top.push_back((capped(picked(i, j), op.softcap) - most) / t);
      }
      double log_z = std::exp(q.rest);
      for (const double x : q.top) log_z += std::exp(x);
      log_z = std::log(log_z);
      p.normalize(), q.normalize();
      SortedDifference differs;
      if (sorted && values(i, 0) > -kInf) {
        for (size_t j = 0; j < p.top.size(); ++j) differs.add(q.top[j], p.top[j]);
        differs.add(q.rest, p.rest);
      }
      const double floor = std::log(double(std::numeric_limits<float>::min())) - log_z;
      Events q_above = q;  // rest is clamped, so that its logarithm is finite
      q_above.rest = std::max(q.rest, floor);
      const double between = sorted ? differs.distance : forward ? divergence(p, q_above) : divergence(q, p);
      const double lse = most + std::log(sums(0, i));
      losses[i] = std::log(sums(0, i)) - sums(1, i);
      divergences[i] = t * t * between;
      // Gradient with respect to logit x of a token; of_teacher: gradient of `between` with respect to the scaled
      // logit.
      const auto gradient_of = [&](double x, bool is_target, double of_teacher) {
        const double softmax = std::exp(capped(x, op.softcap) - lse);
        return weight * slope(x, op.softcap) *
               (t * of_teacher + double(op.ce_weight) * (softmax - (is_target ? 1 : 0)) +
                2 * double(op.z_loss) * lse * softmax);
      };
      for (int64_t c = 0; c < op.part.count; ++c) {
        const double log_q = (capped(z[c], op.softcap) - most) / t - log_z, each = std::exp(log_q);
        const double of_teacher = sorted           ? each * (sign(q.rest - p.rest) - differs.signed_q)
                                  : forward        ? each - std::exp(log_q + p.rest - q_above.rest)
                                  : q.rest > -kInf ? each * (q.rest - p.rest - between)
                                                   : 0;
        gradient[c] = gradient_of(z[c], c == op.part.row(target), of_teacher);
      }
      for (int64_t j = 0; j < k; ++j) {
        const int32_t id = op.ids.as<int32_t>()[i * k + j];
        if (op.part.row(id) < 0) continue;
        const double log_q = q.top[size_t(j)], log_p = p.top[size_t(j)], each = std::exp(log_q);
        const double of_teacher = sorted     ? each * (sign(log_q - log_p) - differs.signed_q)
                                  : forward  ? each - std::exp(log_p)
                                  : each > 0 ? each * (log_q - log_p - between)
                                             : 0;
        gradient[op.part.row(id)] = gradient_of(picked(i, j), id == target, of_teacher);
      }
    }
    store(row, gradient);
  }
  store(op.losses, losses);
  store(op.divergences, divergences);
}

}  // namespace athanor
