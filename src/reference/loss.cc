// Softmax cross-entropy, row by row.
#include <algorithm>
#include <cmath>

#include "reference/reference_ops.h"
#include "reference/values.h"

namespace athanor {

// loss = log sum_c exp(z_c) - z_target;  dz_c = scale inv_count ((1 + 2 z_loss lse) softmax(z)_c - [c = target])
void ReferenceOps::run(const CrossEntropy& op, void*) {
  Values losses = zeros_like(op.losses);  // [n]
  for (int64_t i = 0; i < op.logits.rows(); ++i) {
    const Tensor row = op.logits.slice(i, i + 1);
    const int32_t target = op.targets.as<int32_t>()[i];
    CHECK(target < op.vocab, "cross_entropy.targets: entry ", i, " is ", target, " of a vocabulary of ", op.vocab);
    Values gradient = zeros_like(row);
    if (target >= 0) {
      const Values z = load(row);
      const double most = *std::max_element(z.v.begin(), z.v.begin() + op.vocab);
      double sum = 0;
      for (int64_t c = 0; c < op.vocab; ++c) sum += std::exp(z[c] - most);
      const double lse = most + std::log(sum);
      losses[i] = lse - z[target];
      if (op.grad) {
        const double weight = load(op.scale)[0] * double(op.inv_count);
        const double softmax_weight = op.z_loss == 0 ? 1 : 1 + 2 * double(op.z_loss) * lse;
        for (int64_t c = 0; c < op.vocab; ++c)
          gradient[c] = weight * (softmax_weight * std::exp(z[c] - lse) - (c == target ? 1 : 0));
      }
    }
    if (op.grad) store(row, gradient);
  }
  store(op.losses, losses);
}

}  // namespace athanor
