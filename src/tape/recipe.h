// A precision recipe is a row of data: which dtype each role of tensor has.
#pragma once
#include <string_view>

#include "tensor/dtype.h"

namespace athanor {

struct Recipe {
  std::string_view name;
  DType compute;              // activations, their gradients, and the weights that products read
  DType master;               // what the optimizer updates, or of i16: the rests of f32 masters, halved (tensor/half.h)
  bool tf32 = false;          // round f32 products' inputs to TF32
  bool loss_scaling = false;  // fp16's narrow exponent
  bool separate_params() const { return compute != master; }  // weights to compute with are beside the masters
};

// name: fp32, tf32, bf16 or fp16.
Recipe make_recipe(std::string_view name, DType master);

}  // namespace athanor
