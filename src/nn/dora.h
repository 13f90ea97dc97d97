// DoRA [Liu et al. 2024] of a linear layer with adapters: y = (x W^T + s x A^T B^T) m / |W + s B A| + b. Norms are per
// output and count as constants in backward. Dropout follows PEFT: with x~ = dropout(x), y = (x - x~) W^T + (x~ W^T + s
// x~ A^T B^T) m / |W + s B A| + b, so that only the adapters' part is dropped while m equals the norm.
#pragma once
#include "nn/linear_gemms.h"

namespace athanor {

bool has_magnitudes(Net, const Linear&);

// Values saved for backward.
struct DoraKept {
  Buffer u;        // [N, out]: outputs before scaling by m / norm
  Buffer h;        // h of run_adapters()
  Buffer squares;  // [outputs with adapters] f64: squared norms
};
// Computes the layer's output y [N, out], and adds residual if there is one.
DoraKept run_dora(Net, const Linear&, const Tensor& y, const Buffer& x, const Tensor& residual);
// Adds to the gradients of A, B and m; returns dx [N, in].
Buffer run_dora_gradients(Net, const Linear&, const Buffer& dy, const Tensor& x, const DoraKept&);

}  // namespace athanor
