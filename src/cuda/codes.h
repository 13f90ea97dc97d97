// What products of codes need beside the library: factors and scales as it reads them, or codes as what they stand for.
#pragma once
#include <cuda_runtime_api.h>

#include "cuda/scratch.h"
namespace athanor::cuda {

// out [C, R] = the transpose of codes [R, C]; both sizes multiples of 16, both addresses on boundaries of 16 bytes.
void transpose_codes(void* out, const Tensor& codes, cudaStream_t stream);
// Packs FP4 values, transposed or not: two neighbours of a row of `out` per byte, the first in the low half; R, or C
// without transposing, is a multiple of 32.
void pack_codes(void* out, const Tensor& codes, bool turn, cudaStream_t stream);

// The factors of a product and of d before it, which the library reads in device memory: a b, and 1 or 0.
struct ProductScalars {
  float alpha, beta;
};
void multiply_scales(ProductScalars* out, const float* a, const float* b, bool adds, cudaStream_t stream);

// Scales of a factor in a layout of the library. terms: the dimension of `codes` that the product sums over.
struct ScalesToArrange {
  void* out;  // [scale_bytes()]
  ScaleLayout layout;
  Tensor scales;  // blocks.grid()
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
