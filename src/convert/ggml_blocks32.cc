// Blocks of 32 values. q4_0 and q5_0: f16 scale; q4_1 and q5_1: f16 scale and f16 minimum; then for 5 bits the high
// bits of all values in one word, and the low 4 bits, with value j and value j + 16 in one byte. q8_0: f16 scale and 32
// int8. mxfp4: E8M0 scale and E2M1 values in the same order.
#include <algorithm>
#include <array>
#include <cmath>

#include "convert/ggml_blocks.h"

namespace athanor {
namespace {

using Quants = std::array<uint8_t, kBlock32>;
using Weights = std::array<float, kBlock32>;
constexpr AffineTrials kTrials = {.first = -0.9f, .step = 0.05f, .trials = 37};  // with importance

// Bytes per block with this number of bits, with or without a minimum.
constexpr size_t bytes_of(int bits, bool has_min) { return (has_min ? 4 : 2) + (bits == 5 ? 4 : 0) + kBlock32 / 2; }

template <int kBits>
void put_quants(const Quants& q, std::byte* out) {
  constexpr size_t half = kBlock32 / 2;
  if constexpr (kBits == 5) {
    uint32_t high = 0;
    for (size_t j = 0; j < size_t(kBlock32); ++j) high |= uint32_t(q[j] >> 4 & 1) << j;
    std::memcpy(out, &high, sizeof high);
    out += sizeof high;
  }
  for (size_t j = 0; j < half; ++j) out[j] = std::byte((q[j] & 15) | (q[j + half] & 15) << 4);
}

template <int kBits>
Quants get_quants(const std::byte* from) {
  constexpr size_t half = kBlock32 / 2;
  uint32_t high = 0;
  if constexpr (kBits == 5) {
    std::memcpy(&high, from, sizeof high);
    from += sizeof high;
  }
  Quants q;
  for (size_t j = 0; j < half; ++j) {
    q[j] = uint8_t(uint32_t(from[j] & std::byte{15}) | (high >> j & 1) << 4);
    q[j + half] = uint8_t(uint32_t(from[j] >> 4) | (high >> (j + half) & 1) << 4);
  }
  return q;
}

// Weights of a block's values: importance of the column times sqrt(mean square of the row + x^2).
Weights weights_of(std::span<const float> x, std::span<const float> importance, float mean_square) {
  Weights w;
  for (size_t j = 0; j < w.size(); ++j) w[j] = importance[j] * std::sqrt(mean_square + x[j] * x[j]);
  return w;
}

float mean_square_of(std::span<const float> row) {
  float sum = 0;
  for (const float x : row) sum += x * x;
  return sum / float(row.size());
}

// x ~ scale (q - limit): the scale is set by the value with the largest absolute value, whose q is 0.
template <int kBits>
float by_extreme(std::span<const float> x, Quants& q) {
  constexpr int limit = 1 << (kBits - 1);
  float amax = 0, extreme = 0;
  for (const float value : x)
    if (amax < std::fabs(value)) amax = std::fabs(value), extreme = value;
  const float scale = extreme / -float(limit), inverse = scale != 0 ? 1.0f / scale : 0.0f;
  for (size_t j = 0; j < q.size(); ++j)
    q[j] = uint8_t(std::min(2 * limit - 1, truncated(x[j] * inverse + (float(limit) + 0.5f))));
  return scale;
}

struct ScaleAndMin {
  float scale, min;
};

// x ~ scale q + min: scale and min follow from the minimum and maximum of x.
template <int kBits>
ScaleAndMin by_range(std::span<const float> x, Quants& q) {
  constexpr int levels = (1 << kBits) - 1;
  const auto [min, max] = std::ranges::minmax(x);
  const float scale = (max - min) / float(levels), inverse = scale != 0 ? 1.0f / scale : 0.0f;
  for (size_t j = 0; j < q.size(); ++j) q[j] = uint8_t(std::min(levels, truncated((x[j] - min) * inverse + 0.5f)));
  return {scale, min};
}

template <int kBits>
void quantize_symmetric(std::span<const float> row, std::span<const float> importance, std::byte* out) {
  const float mean_square = importance.empty() ? 0.0f : mean_square_of(row);
  Quants q;
  for (size_t at = 0; at < row.size(); at += q.size(), out += bytes_of(kBits, false)) {
    const auto x = row.subspan(at, q.size());
    float scale;
    if (importance.empty()) {
      scale = by_extreme<kBits>(x, q);
    } else {
      const Weights w = weights_of(x, importance.subspan(at, q.size()), mean_square);
      scale = search_symmetric(x, w, 1 << (kBits - 1), q.data());
    }
    put_half(scale, out);
    put_quants<kBits>(q, out + 2);
  }
}

template <int kBits>
void quantize_affine(std::span<const float> row, std::span<const float> importance, std::byte* out) {
  const float mean_square = importance.empty() ? 0.0f : mean_square_of(row);
  Quants q;
  for (size_t at = 0; at < row.size(); at += q.size(), out += bytes_of(kBits, true)) {
    const auto x = row.subspan(at, q.size());
    ScaleAndMin found;
    if (importance.empty()) {
      found = by_range<kBits>(x, q);
    } else {
      const Weights w = weights_of(x, importance.subspan(at, q.size()), mean_square);
      const AffineScale a = search_affine(x, w, (1 << kBits) - 1, kTrials, q.data());
      found = {a.scale, -a.min};
    }
    put_half(found.scale, out);
    put_half(found.min, out + 2);
    put_quants<kBits>(q, out + 4);
  }
}

template <int kBits>
void dequantize_symmetric(const std::byte* block, float* out) {
  const float scale = get_half(block);
  const Quants q = get_quants<kBits>(block + 2);
  for (size_t j = 0; j < q.size(); ++j) out[j] = float(int(q[j]) - (1 << (kBits - 1))) * scale;
}

template <int kBits>
void dequantize_affine(const std::byte* block, float* out) {
  const float scale = get_half(block), min = get_half(block + 2);
  const Quants q = get_quants<kBits>(block + 4);
  for (size_t j = 0; j < q.size(); ++j) out[j] = float(q[j]) * scale + min;
}

// Twice the values of E2M1, by bit pattern; the scale of a block is halved instead [ggml-common.h, kvalues_mxfp4].
constexpr std::array<float, 16> kMxfp4Values = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
constexpr size_t kMxfp4Bytes = 1 + kBlock32 / 2;
float mxfp4_scale(uint8_t exponent) { return std::ldexp(1.0f, int(exponent) - 128); }

}  // namespace

void quantize_q4_0(std::span<const float> row, std::span<const float> importance, std::byte* out) {
  quantize_symmetric<4>(row, importance, out);
}
void quantize_q5_0(std::span<const float> row, std::span<const float> importance, std::byte* out) {
  quantize_symmetric<5>(row, importance, out);
}
void quantize_q4_1(std::span<const float> row, std::span<const float> importance, std::byte* out) {
  quantize_affine<4>(row, importance, out);
}
void quantize_q5_1(std::span<const float> row, std::span<const float> importance, std::byte* out) {
  quantize_affine<5>(row, importance, out);
}
void quantize_q8_0(std::span<const float> row, std::span<const float> /*importance*/, std::byte* out) {
  for (size_t at = 0; at < row.size(); at += size_t(kBlock32), out += kBlock32 + 2) {
    float amax = 0;
    for (size_t j = 0; j < size_t(kBlock32); ++j) amax = std::max(amax, std::fabs(row[at + j]));
    const float scale = amax / 127, inverse = scale != 0 ? 1.0f / scale : 0.0f;
    put_half(scale, out);
    for (size_t j = 0; j < size_t(kBlock32); ++j)
      out[2 + j] = std::byte(uint8_t(int8_t(truncated(std::round(row[at + j] * inverse)))));
  }
}

void dequantize_q4_0(const std::byte* block, float* out) { dequantize_symmetric<4>(block, out); }
void dequantize_q5_0(const std::byte* block, float* out) { dequantize_symmetric<5>(block, out); }
void dequantize_q4_1(const std::byte* block, float* out) { dequantize_affine<4>(block, out); }
void dequantize_q5_1(const std::byte* block, float* out) { dequantize_affine<5>(block, out); }
void dequantize_q8_0(const std::byte* block, float* out) {
  const float scale = get_half(block);
  for (size_t j = 0; j < size_t(kBlock32); ++j) out[j] = float(int8_t(block[2 + j])) * scale;
}

void quantize_mxfp4(std::span<const float> row, std::span<const float> /*importance*/, std::byte* out) {
  for (size_t begin = 0; begin < row.size(); begin += kBlock32, out += kMxfp4Bytes) {
    const auto x = row.subspan(begin, kBlock32);
    float amax = 0;
    for (const float value : x) amax = std::max(amax, std::abs(value));
    // Below 2^-125 the exponent wraps, as in ggml, and all values become 0.
    const auto exponent = uint8_t(amax > 0 ? int(std::floor(std::log2(amax))) - 2 + 127 : 0);
    const float scale = mxfp4_scale(exponent);
    Quants q;
    for (size_t j = 0; j < q.size(); ++j) {
      const auto error = [&](float value) { return std::abs(value * scale - x[j]); };
      q[j] = uint8_t(std::ranges::min_element(kMxfp4Values, {}, error) - kMxfp4Values.begin());
    }
    *out = std::byte(exponent);
    put_quants<4>(q, out + 1);
  }
}

void dequantize_mxfp4(const std::byte* block, float* out) {
  const float scale = mxfp4_scale(uint8_t(*block));
  const Quants q = get_quants<4>(block + 1);
  for (size_t j = 0; j < q.size(); ++j) out[j] = kMxfp4Values[q[j]] * scale;
}

}  // namespace athanor
