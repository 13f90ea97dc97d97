// The block formats behind ggml_type.h, and the encoding of their f16 scales.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "tensor/half.h"

namespace athanor {

constexpr int64_t kBlock32 = 32;    // values per block of q4_0, q4_1, q5_0, q5_1 and q8_0
constexpr int64_t kBlock256 = 256;  // values per block of q4_K, q5_K and q6_K

// Stores a scale as f16 and returns the value that readers get: infinity if the scale exceeds f16, which the caller
// checks.
inline float put_half(float value, std::byte* out) {
  const f16 stored = from_float<f16>(value);
  std::memcpy(out, &stored, sizeof stored);
  return to_float(stored);
}
inline float get_half(const std::byte* from) {
  f16 stored;
  std::memcpy(&stored, from, sizeof stored);
  return to_float(stored);
}

// Defined in ggml_blocks32.cc; q8_0 ignores the importance.
void quantize_q4_0(std::span<const float> row, std::span<const float> importance, std::byte* out);
void quantize_q4_1(std::span<const float> row, std::span<const float> importance, std::byte* out);
void quantize_q5_0(std::span<const float> row, std::span<const float> importance, std::byte* out);
void quantize_q5_1(std::span<const float> row, std::span<const float> importance, std::byte* out);
void quantize_q8_0(std::span<const float> row, std::span<const float> importance, std::byte* out);
void dequantize_q4_0(const std::byte* block, float* out);
void dequantize_q4_1(const std::byte* block, float* out);
void dequantize_q5_0(const std::byte* block, float* out);
void dequantize_q5_1(const std::byte* block, float* out);
void dequantize_q8_0(const std::byte* block, float* out);

// Defined in ggml_blocks256.cc.
void quantize_q4_k(std::span<const float> row, std::span<const float> importance, std::byte* out);
void quantize_q5_k(std::span<const float> row, std::span<const float> importance, std::byte* out);
void quantize_q6_k(std::span<const float> row, std::span<const float> importance, std::byte* out);
void dequantize_q4_k(const std::byte* block, float* out);
void dequantize_q5_k(const std::byte* block, float* out);
void dequantize_q6_k(const std::byte* block, float* out);

}  // namespace athanor
