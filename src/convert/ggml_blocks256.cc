// Blocks of 256 values whose sub-blocks have scales of 6 or 8 bits. Sub-blocks of 32 (q4_K, q5_K): f16 d, f16 dmin, 8
// pairs of a scale and a minimum in 12 bytes, for 5 bits the high bits of all values, then their low 4 bits; x ~ d
// scale q - dmin min. Sub-blocks of 16 (q6_K): low 4 bits, high 2 bits, 16 int8 scales, f16 d; x ~ d scale (q - 32).
#include <algorithm>
#include <array>
#include <cmath>

#include "convert/ggml_blocks.h"

namespace athanor {
namespace {

constexpr size_t kSub32 = 8, kSub16 = 16;  // sub-blocks per block
constexpr size_t kScaleBytes = 12;
using Quants = std::array<uint8_t, kBlock256>;
using SubScales = std::array<uint8_t, kSub32>;  // quantized scales or minima, 6 bits each

// The first four scales and minima take one byte each. The other four store their low 4 bits in separate bytes and
// their high 2 bits in the top bits of the first eight bytes.
void put_scales(const SubScales& scales, const SubScales& mins, std::byte* out) {
  for (size_t j = 0; j < 4; ++j) {
    out[j] = std::byte(scales[j] | (scales[j + 4] >> 4) << 6);
    out[j + 4] = std::byte(mins[j] | (mins[j + 4] >> 4) << 6);
    out[j + 8] = std::byte((scales[j + 4] & 15) | (mins[j + 4] & 15) << 4);
  }
}
void get_scales(const std::byte* from, SubScales& scales, SubScales& mins) {
  const auto byte = [from](size_t i) { return uint8_t(from[i]); };
  for (size_t j = 0; j < 4; ++j) {
    scales[j] = byte(j) & 63;
    mins[j] = byte(j + 4) & 63;
    scales[j + 4] = uint8_t((byte(j + 8) & 15) | (byte(j) >> 6) << 4);
    mins[j + 4] = uint8_t(byte(j + 8) >> 4 | (byte(j + 4) >> 6) << 4);
  }
}

// Values l and l + 32 of each 64 share a byte; bits 2n and 2n + 1 of byte l are the fifth bits of the n-th such pair.
template <int kBits>
void put_quants(const Quants& q, std::byte* out) {
  if constexpr (kBits == 5) {
    for (size_t l = 0; l < 32; ++l) {
      int high = 0;
      for (size_t n = 0; n < kSub32; ++n) high |= (q[32 * n + l] >> 4) << n;
      out[l] = std::byte(high);
    }
    out += 32;
  }
  for (size_t n = 0; n < size_t(kBlock256); n += 64, out += 32)
    for (size_t l = 0; l < 32; ++l) out[l] = std::byte((q[n + l] & 15) | (q[n + l + 32] & 15) << 4);
}

struct Affine {
  std::array<float, kSub32> scales, mins;
  SubScales quantized_scales, quantized_mins;
  float d, dmin;
};

// Without importance: weights of a sub-block are its RMS + |x|, and the maximum scale is quantized to 63.
template <int kBits>
void search_plain(std::span<const float> x, Quants& q, Affine& found) {
  constexpr AffineTrials trials = kBits == 4 ? AffineTrials{.first = -1.0f, .step = 0.1f, .trials = 21}
                                             : AffineTrials{.first = -0.5f, .step = 0.1f, .trials = 16};
  float max_scale = 0, max_min = 0;
  for (size_t j = 0; j < kSub32; ++j) {
    const auto sub = x.subspan(32 * j, 32);
    float squares = 0;
    for (const float value : sub) squares += value * value;
    const float rms = std::sqrt(squares / 32);
    std::array<float, 32> weights;
    for (size_t l = 0; l < 32; ++l) weights[l] = rms + std::fabs(sub[l]);
    const AffineScale a = search_affine(sub, weights, (1 << kBits) - 1, trials, q.data() + 32 * j);
    found.scales[j] = a.scale;
    found.mins[j] = a.min;
    max_scale = std::max(max_scale, a.scale);
    max_min = std::max(max_min, a.min);
  }
  const float inverse_scale = max_scale > 0 ? 63.0f / max_scale : 0.0f;
  const float inverse_min = max_min > 0 ? 63.0f / max_min : 0.0f;
  for (size_t j = 0; j < kSub32; ++j) {
    found.quantized_scales[j] = std::min<uint8_t>(63, uint8_t(nearest_int(inverse_scale * found.scales[j])));
    found.quantized_mins[j] = std::min<uint8_t>(63, uint8_t(nearest_int(inverse_min * found.mins[j])));
  }
  found.d = max_scale / 63.0f;
  found.dmin = max_min / 63.0f;
}

// With importance: weights are importance sqrt(2 mean square of the block + x^2), and the scales are quantized, too,
// each weighted by the sum of weights of its sub-block.
template <int kBits>
void search_weighted(std::span<const float> x, std::span<const float> importance, Quants& q, Affine& found) {
  constexpr AffineTrials trials = {.first = -0.9f, .step = 0.05f, .trials = 37};
  float squares = 0;
  for (const float value : x) squares += value * value;
  const float spread = 2 * squares / float(kBlock256);
  std::array<float, kSub32> sums;
  for (size_t j = 0; j < kSub32; ++j) {
    const auto sub = x.subspan(32 * j, 32);
    std::array<float, 32> weights;
    sums[j] = 0;
    for (size_t l = 0; l < 32; ++l) {
      weights[l] = importance[32 * j + l] * std::sqrt(spread + sub[l] * sub[l]);
      sums[j] += weights[l];
    }
    const AffineScale a = search_affine(sub, weights, (1 << kBits) - 1, trials, q.data() + 32 * j);
    found.scales[j] = a.scale;
    found.mins[j] = a.min;
  }
  found.d = search_positive(found.scales, sums, 63, found.quantized_scales.data());
  found.dmin = search_positive(found.mins, sums, 63, found.quantized_mins.data());
}

template <int kBits>
void quantize_affine(std::span<const float> row, std::span<const float> importance, std::byte* out) {
  constexpr int levels = (1 << kBits) - 1;
  Quants q;
  Affine found;
  for (size_t at = 0; at < row.size(); at += q.size()) {
    const auto x = row.subspan(at, q.size());
    if (importance.empty())
      search_plain<kBits>(x, q, found);
    else
      search_weighted<kBits>(x, importance.subspan(at, q.size()), q, found);
    const float d = put_half(found.d, out), dmin = put_half(found.dmin, out + 2);
    put_scales(found.quantized_scales, found.quantized_mins, out + 4);
    for (size_t j = 0; j < kSub32; ++j) {  // quantizes again with the scales that readers will use
      const float scale = d * float(found.quantized_scales[j]), min = dmin * float(found.quantized_mins[j]);
      if (scale == 0) continue;
      for (size_t i = 32 * j; i < 32 * (j + 1); ++i)
        q[i] = uint8_t(std::clamp(nearest_int((x[i] + min) / scale), 0, levels));
    }
    put_quants<kBits>(q, out + 4 + kScaleBytes);
    out += 4 + kScaleBytes + kBlock256 * kBits / 8;
  }
}

template <int kBits>
void dequantize_affine(const std::byte* block, float* out) {
  const float d = get_half(block), dmin = get_half(block + 2);
  SubScales scales, mins;
  get_scales(block + 4, scales, mins);
  const std::byte* high = block + 4 + kScaleBytes;
  const std::byte* low = kBits == 5 ? high + 32 : high;
  for (size_t j = 0; j < kSub32; ++j) {
    const float scale = d * float(scales[j]), min = dmin * float(mins[j]);
    for (size_t l = 0; l < 32; ++l) {
      uint32_t q = uint32_t(low[j / 2 * 32 + l]) >> (j % 2 * 4) & 15;
      if (kBits == 5) q |= (uint32_t(high[l]) >> j & 1) << 4;
      out[32 * j + l] = scale * float(q) - min;
    }
  }
}

}  // namespace

void quantize_q4_k(std::span<const float> row, std::span<const float> importance, std::byte* out) {
  quantize_affine<4>(row, importance, out);
}
void quantize_q5_k(std::span<const float> row, std::span<const float> importance, std::byte* out) {
  quantize_affine<5>(row, importance, out);
}
void dequantize_q4_k(const std::byte* block, float* out) { dequantize_affine<4>(block, out); }
void dequantize_q5_k(const std::byte* block, float* out) { dequantize_affine<5>(block, out); }

void quantize_q6_k(std::span<const float> row, std::span<const float> importance, std::byte* out) {
  constexpr size_t bytes = 210, high = 128, scale_at = 192, d_at = 208;
  Quants q;
  for (size_t at = 0; at < row.size(); at += q.size(), out += bytes) {
    const auto x = row.subspan(at, q.size());
    std::array<float, kSub16> scales;
    float extreme = 0;
    for (size_t j = 0; j < kSub16; ++j) {
      const auto weights = importance.empty() ? importance : importance.subspan(at + 16 * j, 16);
      scales[j] = search_symmetric(x.subspan(16 * j, 16), weights, 32, q.data() + 16 * j);
      if (std::fabs(scales[j]) > std::fabs(extreme)) extreme = scales[j];
    }
    if (std::fabs(extreme) < kAllZero) {
      std::fill_n(out, bytes, std::byte{0});
      continue;
    }
    const float inverse = -128.0f / extreme, d = put_half(1 / inverse, out + d_at);
    for (size_t j = 0; j < kSub16; ++j) {
      const auto code = int8_t(std::min(127, nearest_int(inverse * scales[j])));
      out[scale_at + j] = std::byte(uint8_t(code));
      const float scale = d * float(code);
      if (scale == 0) continue;
      for (size_t i = 16 * j; i < 16 * (j + 1); ++i)
        q[i] = uint8_t(std::clamp(nearest_int(x[i] / scale), -32, 31) + 32);
    }
    for (size_t n = 0; n < 2; ++n)
      for (size_t l = 0; l < 32; ++l) {
        const uint8_t* v = q.data() + 128 * n + l;
        out[64 * n + l] = std::byte((v[0] & 15) | (v[64] & 15) << 4);
        out[64 * n + l + 32] = std::byte((v[32] & 15) | (v[96] & 15) << 4);
        out[high + 32 * n + l] = std::byte(v[0] >> 4 | (v[32] >> 4) << 2 | (v[64] >> 4) << 4 | (v[96] >> 4) << 6);
      }
  }
}

void dequantize_q6_k(const std::byte* block, float* out) {
  constexpr size_t high = 128, scale_at = 192, d_at = 208;
  const float d = get_half(block + d_at);
  for (size_t n = 0; n < 2; ++n)
    for (size_t part = 0; part < 4; ++part)
      for (size_t l = 0; l < 32; ++l) {
        const uint32_t low = uint32_t(block[64 * n + part % 2 * 32 + l]) >> (part / 2 * 4) & 15;
        const uint32_t top = uint32_t(block[high + 32 * n + l]) >> (2 * part) & 3;
        const auto scale = int8_t(block[scale_at + 8 * n + 2 * part + l / 16]);
        out[128 * n + 32 * part + l] = d * float(scale) * float(int(low | top << 4) - 32);
      }
}

}  // namespace athanor
