// What products of codes need beside the library: factors and scales as it reads them, or codes as what they stand for.
#pragma once
#include <cuda_runtime_api.h>

#include "cuda/scratch.h"
namespace athanor::cuda {

// out [C, R] = the transpose of codes [R, C]; both sizes multiples of 16, both addresses on boundaries of 16 bytes.
void transpose_codes(void* out, const Tensor& codes, cudaStream_t stream);

// f32 scales of a factor in a layout of the library. terms: the dimension of `codes` that the product sums over.
struct ScalesToArrange {
  float* out;  // [scale_count()]
  ScaleLayout layout;
  Tensor scales;  // blocks.grid(), f32
  Blocks blocks;
  Shape codes;
  int terms;
};
void arrange_scales(const ScalesToArrange& op, cudaStream_t stream);

// out = codes * scales (* global, of codes of 4 bits) as f32.
struct Decoding {
  float* out;
  Tensor codes, scales, global;
  Blocks blocks;
};
void decode(const Decoding& op, cudaStream_t stream);

// d = z + bias, rounded to d's type; z [M, N] f32, contiguous.
void round_product(const Tensor& d, const float* z, const Tensor& bias, cudaStream_t stream);
}  // namespace athanor::cuda
