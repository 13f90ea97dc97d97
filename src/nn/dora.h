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
// Computes the layer's output y [N, out] from all rows of x, and adds residual if there is one. As for linear layers, y
// and residual of a row-parallel layer, and dx [in] of a column-parallel one, have rows of the residual stream.
DoraKept run_dora(Net, const Linear&, const Tensor& y, const Buffer& x, const Tensor& residual);
// Adds to the gradients of A, B and m, given all rows of dy and x; returns dx.
Buffer run_dora_gradients(Net, const Linear&, const Shape& in, const Buffer& dy, const Tensor& x, const DoraKept&);

}  // namespace athanor
