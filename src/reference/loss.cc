// Softmax cross-entropy, row by row.
#include <algorithm>
#include <cmath>
#include <limits>

#include "reference/reference_ops.h"
#include "reference/values.h"

namespace athanor {
namespace {

// What exponents are relative to: -inf - -inf would be NaN.
double base(double max) { return max == -std::numeric_limits<double>::infinity() ? 0 : max; }

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

// loss = log sum_c exp(z_c) - z_target;  dz_c = scale inv_count ((1 + 2 z_loss lse) softmax(z)_c - [c = target])
void ReferenceOps::run(const CrossEntropy& op, void*) {
  Values losses = zeros_like(op.losses);  // [n]
  const int64_t vocab = op.part ? op.part.total : op.vocab;
  for (int64_t i = 0; i < op.logits.rows(); ++i) {
    const Tensor row = op.logits.slice(i, i + 1);
    const int32_t target = op.targets.as<int32_t>()[i];
    CHECK(target < vocab, "cross_entropy.targets: entry ", i, " is ", target, " of a vocabulary of ", vocab);
    Values gradient = zeros_like(row);
    if (target >= 0) {
      const Values z = load(row);
      const RowSums s = op.part ? RowSums{base(load(op.max)[i]), load(op.sums)(0, i), load(op.sums)(1, i)}
                                : sums_of(z, op.vocab, target);
      const double lse = s.base + std::log(s.sum);
      losses[i] = std::log(s.sum) - s.at_target;
      if (op.grad) {
        const double weight = load(op.scale)[0] * double(op.inv_count);
        const double softmax_weight = op.z_loss == 0 ? 1 : 1 + 2 * double(op.z_loss) * lse;
        for (int64_t c = 0; c < op.vocab; ++c)
          gradient[c] = weight * (softmax_weight * std::exp(z[c] - lse) - (c == op.part.row(target) ? 1 : 0));
      }
    }
    if (op.grad) store(row, gradient);
  }
  store(op.losses, losses);
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
    const Values z = load(op.logits.slice(i, i + 1));
    for (int64_t c = 0; c < op.part.count; ++c) sums(0, i) += std::exp(z[c] - base(max[i]));
    const int32_t target = op.targets.as<int32_t>()[i];
    CHECK(target < op.part.total, "logit_sums.targets: entry ", i, " is ", target, " of a vocabulary of ",
          op.part.total);
    const int32_t row = target < 0 ? -1 : op.part.row(target);
    if (row >= 0) sums(1, i) = z[row] - base(max[i]);
  }
  store(op.sums, sums);
}

}  // namespace athanor
