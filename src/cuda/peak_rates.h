// Dense tensor-core rates of known GPUs, as their data sheets state them: what MFU is a fraction of.
#pragma once
#include <string_view>

#include "tensor/dtype.h"
namespace athanor::cuda {

// Operations per second of products with inputs of this type and sums in f32; 0 for a GPU that the table does not have.
// f32 is the rate of TF32.
double peak_rate(std::string_view gpu_name, DType inputs);
}  // namespace athanor::cuda
