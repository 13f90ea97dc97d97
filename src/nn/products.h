// The three products of a linear layer as ops, for layers that add epilogues to them.
#pragma once
#include "nn/layers.h"

namespace athanor {

int64_t outputs_of(Net, const Linear&);
// y = x W^T + b (W [out, in]; transposed for [in, out])
Gemm linear_product(Net, const Linear&, Tensor y, Tensor x);
// dx = dy W
Gemm input_gradient(Net, const Linear&, Tensor dx, Tensor dy);
// dW += dy^T x, db += column sums of dy
Gemm weight_gradient(Net, const Linear&, Tensor dy, Tensor x);

}  // namespace athanor
