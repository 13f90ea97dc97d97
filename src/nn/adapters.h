// LoRA adapters of a linear layer [Hu et al. 2021, "LoRA"]: y += scale x A^T B^T, added to the output of a frozen
// weight, with the same GEMM ops as other layers.
#pragma once
#include "nn/layers.h"

namespace athanor {

// Adds the adapters' output to the layer's output y [N, out]; x [N, in] is the layer's input. Returns h = scale x A^T
// [N, parts * rank] for backward.
Buffer run_adapters(Net, const Linear&, const Tensor& y, const Tensor& x);
// Adds to the gradients of A and B, and adds the adapters' part to dx.
void run_adapter_gradients(Net, const Linear&, const Tensor& dx, const Tensor& dy, const Tensor& x, const Tensor& h);

// Dropout of the adapters' input: dropped_input() returns x with dropout in training, else x itself; drop_gradient()
// applies the same dropout to the gradient in place.
bool drops_inputs(Net, const Linear&);
Buffer dropped_input(Net, const Linear&, const Tensor& x);
void drop_gradient(Net, const Linear&, const Tensor& dx);

// Returns the buffer to which a layer adds the gradient of a parameter; for a frozen parameter, scratch memory that
// nothing reads.
Buffer gradient_of(Net, Param);

}  // namespace athanor
