// DoRA [Liu et al. 2024] of a linear layer with adapters: y = (x W^T + s x A^T B^T) m / |W + s B A| + b, norms by rows
// of outputs, which count as constants for gradients. With dropout as PEFT has it: x~ dropped,
// y = (x - x~) W^T + (x~ W^T + s x~ A^T B^T) m / |W + s B A| + b, so that where m is the norm only the adapters' part
// is dropped.
#pragma once
#include "nn/linear_gemms.h"

namespace athanor {

bool has_magnitudes(Net, const Linear&);

// What backward reads of forward.
struct DoraKept {
  Buffer u;        // [N, out]: the outputs before they are scaled
  Buffer h;        // of the adapters
  Buffer squares;  // [outputs of the parts] f64: squares of the norms
};
// y = the layer's output [N, out], plus residual if there is one.
DoraKept run_dora(Net, const Linear&, const Tensor& y, const Buffer& x, const Tensor& residual);
// Adds to the gradients of A, B and m; returns dx [N, in].
Buffer run_dora_gradients(Net, const Linear&, const Buffer& dy, const Tensor& x, const DoraKept&);

}  // namespace athanor
