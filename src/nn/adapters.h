// Low-rank adapters of a linear layer [Hu et al. 2021, "LoRA"]: y += scale x A^T B^T beside a frozen weight, by
// products of the kinds that layers have anyway.
#pragma once
#include "nn/layers.h"

namespace athanor {

// Adds the adapters' part to the layer's output y [N, out]; x [N, in] is its input. Returns h = scale x A^T
// [N, parts * rank], of which the gradients are made.
Buffer run_adapters(Net, const Linear&, const Tensor& y, const Tensor& x);
// Adds to the gradients of A and B, and the adapters' part to dx.
void run_adapter_gradients(Net, const Linear&, const Tensor& dx, const Tensor& dy, const Tensor& x, const Tensor& h);

// What the adapters read of the layer's input: dropped in training, else the input itself; and the gradient of that in
// place.
bool drops_inputs(Net, const Linear&);
Buffer dropped_input(Net, const Linear&, const Tensor& x);
void drop_gradient(Net, const Linear&, const Tensor& dx);

// Where a layer adds the gradient of a parameter: its buffer, or of a frozen one memory that nobody reads.
Buffer gradient_of(Net, Param);

}  // namespace athanor
