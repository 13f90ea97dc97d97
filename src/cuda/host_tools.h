// Helpers for every kernel launcher: the element type of a tensor as a template argument, its pointer, checked sizes.
#pragma once
#include <cstdint>

#include "base/int.h"
#include "cuda/check.h"
#include "cuda/types.h"
#include "tensor/tensor.h"
namespace athanor::cuda {

// Calls f.operator()<T>() with T = float, bf16 or fp16, by dtype.
template <class F>
void by_type(DType dtype, F f) {
  switch (dtype) {
    case DType::f32:
      return f.template operator()<float>();
    case DType::bf16:
      return f.template operator()<bf16>();
    case DType::f16:
      return f.template operator()<fp16>();
    default:
      throw Error(cat("CUDA: ", dtype, " is not a float type of kernels; expected f32, bf16 or f16"));
  }
}

template <class T>
T* data(const Tensor& t) {
  return static_cast<T*>(t.data);
}

// A dimension of a grid.
inline unsigned grid_size(int64_t n) {
  CHECK(n >= 0 && n < int64_t{1} << 31, "CUDA: a grid of ", n, " blocks; the limit is 2^31 - 1");
  return static_cast<unsigned>(n);
}

// Columns of a matrix for kernels that count rows and columns in 32 bits.
inline int checked_columns(const char* op, const Tensor& t) {
  CHECK(t.cols() < 1 << 30 && t.rows() < int64_t{1} << 31, op, ": ", t.shape, " is beyond 32-bit indices");
  return static_cast<int>(t.cols());
}
}  // namespace athanor::cuda
