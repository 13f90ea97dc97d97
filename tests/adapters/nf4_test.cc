// NF4 by known bytes: those that can be computed by hand, and those that bitsandbytes makes of the same numbers
// (scripts/check_bitsandbytes.py prints them).
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string_view>

#include "base/rng.h"
#include "param/nf4.h"

namespace athanor {
namespace {

std::vector<std::byte> quantized(const std::vector<float>& values, bool nested) {
  Nf4Quantizer quantizer(int64_t(values.size()), nested);
  const size_t some = values.size() / 3;  // two ranges that do not end on block boundaries
  quantizer.add(std::span(values).first(some));
  quantizer.add(std::span(values).subspan(some));
  return quantizer.finish();
}

std::vector<float> dequantized(const std::vector<std::byte>& bytes, const Nf4Record& record) {
  std::vector<float> values(size_t(record.elements));
  dequantize_nf4(bytes.data(), nf4_absmax(bytes, record), 0, record.elements, values.data());
  return values;
}

std::string hash(const std::byte* bytes, int64_t n) {
  const std::string_view text(reinterpret_cast<const char*>(bytes), size_t(n));
  return cat(stream_of(text));  // FNV-1a
}

TEST(Nf4, QuantizesABlockAsComputedByHand) {
  std::vector<float> values(64);
  values[0] = -1, values[1] = -0.5f, values[3] = 0.25f, values[4] = 1;
  const Nf4Record record(64, false);
  const auto bytes = quantized(values, false);
  EXPECT_EQ(int(bytes[0]), 0x02) << "-1 and -0.5: values 0 and 2, the first in the high half";
  EXPECT_EQ(int(bytes[1]), 0x7a) << "0 and 0.25";
  EXPECT_EQ(int(bytes[2]), 0xf7);
  EXPECT_EQ(int(bytes[31]), 0x77);
  const std::vector<float> back = dequantized(bytes, record);
  EXPECT_EQ(back[1], -0.5250730514526367f);
  EXPECT_EQ(back[3], 0.24611230194568634f);
  EXPECT_EQ(back[4], 1);
}

// Midpoints belong to the lower value.
TEST(Nf4, MidpointsRoundDown) {
  std::vector<float> values(64);
  values[0] = 1;
  for (size_t i = 0; i < 15; ++i) values[i + 1] = (kNf4.value[i] + kNf4.value[i + 1]) / 2;
  for (size_t i = 0; i < 15; ++i) values[i + 16] = std::nextafter(values[i + 1], 2.0f);
  const std::vector<float> back = dequantized(quantized(values, false), {64, false});
  for (size_t i = 0; i < 15; ++i) {
    EXPECT_EQ(back[i + 1], kNf4.value[i]) << i;
    EXPECT_EQ(back[i + 16], kNf4.value[i + 1]) << i;
  }
}

// Absmaxes 1 and 3: their mean is 2, the deviations -1 and 1 are the map's first and last value of a nested absmax 1.
TEST(Nf4, QuantizesNestedAbsmaxAsComputedByHand) {
  std::vector<float> values(128);
  values[0] = 1, values[64] = -3;
  const Nf4Record record(128, true);
  const auto bytes = quantized(values, true);
  EXPECT_EQ(int(bytes[size_t(record.absmax_at)]), 0);
  EXPECT_EQ(int(bytes[size_t(record.absmax_at) + 1]), 255);
  const std::vector<float> absmax = nf4_absmax(bytes, record);
  EXPECT_EQ(absmax[0], 2 + nf4_map()[0]);
  EXPECT_NEAR(absmax[0], 1.00703, 1e-5);
  EXPECT_EQ(absmax[1], 3);
}

TEST(Nf4, RoundTripsShortBlocksAndZeros) {
  for (const int64_t n : {1, 3, 64, 65, 129}) {
    const std::vector<float> zeros(static_cast<size_t>(n));
    for (const bool nested : {false, true})
      for (const float x : dequantized(quantized(zeros, nested), {n, nested})) EXPECT_EQ(x, 0) << n << nested;
  }
  std::vector<float> odd(67, 0.5f);
  odd[66] = -2;
  const std::vector<float> back = dequantized(quantized(odd, false), {67, false});
  EXPECT_EQ(back[0], 0.5f);
  EXPECT_EQ(back[66], -2);
}

// Values exact in f32, in blocks with different absmaxes and without a simple order; the script computes the same with
// NumPy.
std::vector<float> sample() {
  std::vector<float> values(20011);
  for (size_t i = 0; i < values.size(); ++i) {
    const auto x = int(i * i * 7919 % 2003) - 1001, size = int(i / 64 * 13 % 97) + 1;
    values[i] = float(x * size) * 0x1p-17f;
  }
  return values;
}

TEST(Nf4, BytesMatchBitsandbytes) {
  for (const bool nested : {false, true}) {
    const Nf4Record record(20011, nested);
    const auto bytes = quantized(sample(), nested);
    EXPECT_EQ(hash(bytes.data(), record.packed_bytes()), "7401665719298528000");
    const std::byte* absmax = bytes.data() + record.absmax_at;
    EXPECT_EQ(hash(absmax, record.absmax_bytes()), nested ? "4616058346528561519" : "14361142403565419981");
    if (!nested) continue;
    EXPECT_EQ(hash(bytes.data() + record.nested_at, 4 * record.nested_blocks), "326258665413954601");
    EXPECT_EQ(hash(bytes.data() + record.map_at, 4 * kNf4MapSize), "15454086911070985156");
  }
}

}  // namespace
}  // namespace athanor
