// A precision recipe is a row of data: which dtype each role of tensor has.
#pragma once
#include <string_view>

#include "tensor/dtype.h"

namespace athanor {

struct Recipe {
  std::string_view name;
  DType compute;              // activations, their gradients, and the weights that products read
  DType master;               // what the optimizer updates; gradients and moments are f32
  bool tf32 = false;          // round f32 products' inputs to TF32
  bool loss_scaling = false;  // fp16's narrow exponent
  bool separate_params() const { return compute != master; }  // a compute copy of the masters exists
};

// name: fp32, tf32, bf16 or fp16.
Recipe make_recipe(std::string_view name, DType master);

}  // namespace athanor
