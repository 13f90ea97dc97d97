// Prepares FP8/FP4 operands and their scales for cuBLASLt's GEMMs, or dequantizes operands to f32.
#pragma once
#include <cuda_runtime_api.h>

#include "cuda/scratch.h"
namespace athanor::cuda {

// out [C, R] = the transpose of quantized [R, C]. Both sizes are multiples of 16, both addresses are 16-byte aligned.
void transpose_quantized(void* out, const Tensor& quantized, cudaStream_t stream);
// Packs FP4 values, transposed if `transposes`: each byte gets two neighbours of a row of `out`, the first in the low
// half. R, or C without transposing, is a multiple of 32.
void pack_quantized(void* out, const Tensor& quantized, bool transposes, cudaStream_t stream);

// Writes alpha = a * b and beta = 1 or 0 (adds) of a GEMM, which the library reads from device memory.
struct GemmScalars {
  float alpha, beta;
};
void multiply_scales(GemmScalars* out, const float* a, const float* b, bool adds, cudaStream_t stream);

// Scales of a GEMM operand, to be rearranged into a layout of the library. terms: the dimension of `quantized` that is
// K.
struct ScalesToArrange {
  void* out;  // [scale_bytes()]
  ScaleLayout layout;
  Tensor scales;  // shape: blocks.grid(quantized)
  Blocks blocks;
  Shape quantized;
  int terms;
};
void arrange_scales(const ScalesToArrange& op, cudaStream_t stream);

// out = quantized * scales as f32; FP4 values are also multiplied by `global`.
struct Decoding {
  float* out;
  Tensor quantized, scales, global;
  Blocks blocks;
};
void decode(const Decoding& op, cudaStream_t stream);

// d = z + bias, rounded to d's type; z [M, N] f32, contiguous.
void round_gemm(const Tensor& d, const float* z, const Tensor& bias, cudaStream_t stream);
}  // namespace athanor::cuda
