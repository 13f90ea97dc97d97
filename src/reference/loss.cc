// Softmax cross-entropy, row by row.
#include <algorithm>
#include <cmath>
#include <limits>

#include "reference/reference_ops.h"
#include "reference/values.h"

namespace athanor {
namespace {

// [n] logits and how the capped ones follow them: softcap * tanh(z / softcap) and 1 - tanh^2.
struct Capped {
  Values z;
  std::vector<double> slope;
};

Capped capped(const Tensor& row, int64_t vocab, float softcap) {
  Capped out{load(row), std::vector<double>(size_t(vocab), 1.0)};
  if (softcap == 0) return out;
  for (int64_t c = 0; c < vocab; ++c) {
    const double t = std::tanh(out.z[c] / double(softcap)), cosine = std::cosh(out.z[c] / double(softcap));
    out.z[c] = double(softcap) * t;
    out.slope[size_t(c)] = 1 / (cosine * cosine);
  }
  return out;
}

struct RowSums {
  double base, sum, at_target;  // sum of exp(z - base); z of the target - base
};

RowSums sums_of(const Values& z, int64_t vocab, int32_t target) {
  RowSums s{.base = *std::max_element(z.v.begin(), z.v.begin() + vocab), .sum = 0, .at_target = 0};
  for (int64_t c = 0; c < vocab; ++c) s.sum += std::exp(z[c] - s.base);
  s.at_target = z[target] - s.base;
  return s;
}

}  // namespace

// loss = log sum_c exp(z_c) - z_target;  dz_c = scale inv_count ((1 + 2 z_loss lse) softmax(z)_c - [c = target]);
// with softcap of z = softcap tanh(x / softcap), and dx_c = dz_c / cosh(x_c / softcap)^2
void ReferenceOps::run(const CrossEntropy& op, void*) {
  Values losses = zeros_like(op.losses);  // [n]
  const int64_t vocab = op.part ? op.part.total : op.vocab;
  for (int64_t i = 0; i < op.logits.rows(); ++i) {
    const Tensor row = op.logits.slice(i, i + 1);
    const int32_t target = op.targets.as<int32_t>()[i];
    CHECK(target < vocab, "cross_entropy.targets: entry ", i, " is ", target, " of a vocabulary of ", vocab);
    Values gradient = zeros_like(row);
    if (target >= 0) {
      const auto [z, slope] = capped(row, op.vocab, op.softcap);
      const RowSums s = op.part ? RowSums{exponent_base(capped(load(op.max)[i], op.softcap)), load(op.sums)(0, i),
                                          load(op.sums)(1, i)}
                                : sums_of(z, op.vocab, target);
      const double lse = s.base + std::log(s.sum);
      losses[i] = std::log(s.sum) - s.at_target;
      if (op.grad) {
        const double weight = load(op.scale)[0] * double(op.inv_count);
        const double softmax_weight = op.z_loss == 0 ? 1 : 1 + 2 * double(op.z_loss) * lse;
        for (int64_t c = 0; c < op.vocab; ++c)
          gradient[c] =
              weight * slope[size_t(c)] * (softmax_weight * std::exp(z[c] - lse) - (c == op.part.row(target) ? 1 : 0));
      }
    }
    if (op.grad) store(row, gradient);
  }
  store(op.losses, losses);
}

namespace {

// log softmax(z / temperature) over the vocabulary.
std::vector<double> log_softmax(const Values& z, int64_t vocab, double temperature) {
  const double max = *std::max_element(z.v.begin(), z.v.begin() + vocab);
  double sum = 0;
  for (int64_t c = 0; c < vocab; ++c) sum += std::exp((z[c] - max) / temperature);
  std::vector<double> out;
  for (int64_t c = 0; c < vocab; ++c) out.push_back((z[c] - max) / temperature - std::log(sum));
  return out;
}

// KL(a, b) of distributions given by their logarithms; what has no probability in a counts nothing.
double divergence(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t c = 0; c < a.size(); ++c)
    if (const double p = std::exp(a[c]); p > 0) sum += p * (a[c] - b[c]);
  return sum;
}

}  // namespace

// With q and p the softmax of student and teacher at the temperature T:
//   kl:          T^2 KL(p, q), and its gradient T (q - p)
//   reverse_kl:  T^2 KL(q, p), and its gradient T q (log q - log p - KL(q, p))
void ReferenceOps::run(const DistilledCrossEntropy& op, void*) {
  Values losses = zeros_like(op.losses), divergences = zeros_like(op.divergences);
  const double t = op.temperature, weight = load(op.scale)[0] * double(op.inv_count);
  for (int64_t i = 0; i < op.logits.rows(); ++i) {
    const Tensor row = op.logits.slice(i, i + 1);
    const int32_t target = op.targets.as<int32_t>()[i];
    CHECK(target < op.vocab, "distilled_cross_entropy.targets: entry ", i, " is ", target, " of a vocabulary of ",
          op.vocab);
    Values gradient = zeros_like(row);
    if (target >= 0) {
      const auto [z, slope] = capped(row, op.vocab, op.softcap);
      const Values v = capped(op.teacher.slice(i, i + 1), op.vocab, op.teacher_softcap).z;
      const std::vector<double> log_q = log_softmax(z, op.vocab, t), log_p = log_softmax(v, op.vocab, t);
      const bool forward = op.kind == DistillLoss::kl;
      const double between = forward ? divergence(log_p, log_q) : divergence(log_q, log_p);
      const RowSums s = sums_of(z, op.vocab, target);
      const double lse = s.base + std::log(s.sum);
      losses[i] = std::log(s.sum) - s.at_target;
      divergences[i] = t * t * between;
      for (int64_t c = 0; c < op.vocab; ++c) {
        const double q = std::exp(log_q[size_t(c)]), p = std::exp(log_p[size_t(c)]);
        const double of_teacher = forward ? q - p : q > 0 ? q * (log_q[size_t(c)] - log_p[size_t(c)] - between) : 0;
        const double softmax = std::exp(z[c] - lse);
        gradient[c] = weight * slope[size_t(c)] *
                      (t * of_teacher + double(op.ce_weight) * (softmax - (c == target ? 1 : 0)) +
                       2 * double(op.z_loss) * lse * softmax);
      }
    }
    store(row, gradient);
  }
  store(op.losses, losses);
  store(op.divergences, divergences);
}

void ReferenceOps::run(const RowMax& op, void*) {
  Values max = zeros_like(op.max);
  for (int64_t i = 0; i < op.x.rows(); ++i) {
    const Values x = load(op.x.slice(i, i + 1));
    max[i] = -std::numeric_limits<double>::infinity();
    for (int64_t c = 0; c < op.columns; ++c) max[i] = std::max(max[i], x[c]);
  }
  store(op.max, max);
}

void ReferenceOps::run(const LogitSums& op, void*) {
  Values sums = zeros_like(op.sums);
  const Values max = load(op.max);
  for (int64_t i = 0; i < op.logits.rows(); ++i) {
    const Values z = capped(op.logits.slice(i, i + 1), op.part.count, op.softcap).z;
    const double most = exponent_base(capped(max[i], op.softcap));
    for (int64_t c = 0; c < op.part.count; ++c) sums(0, i) += std::exp(z[c] - most);
    const int32_t target = op.targets.as<int32_t>()[i];
    CHECK(target < op.part.total, "logit_sums.targets: entry ", i, " is ", target, " of a vocabulary of ",
          op.part.total);
    const int32_t row = target < 0 ? -1 : op.part.row(target);
    if (row >= 0) sums(1, i) = z[row] - most;
  }
  store(op.sums, sums);
}

}  // namespace athanor
