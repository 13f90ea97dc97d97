// Quantized blocks against bytes worked out by hand, and against fingerprints of what ggml's own library computes from
// the same values (libggml-base of llama-cpp-py-sync 0.11739: ggml_quantize_chunk and dequantize_row_*).
#include "convert/ggml_type.h"

#include <cmath>

#include "base/error.h"
#include "tests/checkpoint/scratch.h"

namespace athanor::test {
namespace {

std::vector<int> quantized(GgmlType type, std::vector<float> values) {
  values.resize(size_t(ggml_info(type).block));
  std::vector<std::byte> out;
  append_ggml(type, {.values = values, .columns = int64_t(values.size()), .what = "t"}, nullptr, out);
  std::vector<int> bytes;
  for (const std::byte b : out) bytes.push_back(int(b));
  return bytes;
}

std::vector<int> parts(std::vector<std::vector<int>> of) {
  std::vector<int> all;
  for (const auto& part : of) all.insert(all.end(), part.begin(), part.end());
  return all;
}

std::vector<int> counting(int first, int step, int count) {
  std::vector<int> out;
  for (int i = 0; i < count; ++i) out.push_back(first + i * step);
  return out;
}

std::vector<float> ramp(float first, int count) {
  std::vector<float> out;
  for (int i = 0; i < count; ++i) out.push_back(first + float(i));
  return out;
}

TEST(GgmlType, BlocksOf32MatchHandComputedBytes) {
  // The value of maximum magnitude, -8, is quantized to 0 with scale 1; zeros become 8.
  EXPECT_EQ(quantized(GgmlType::q4_0, ramp(-8, 16)), parts({{0x00, 0x3c}, counting(0x80, 1, 16)}));
  // 0 .. 31 in steps of 31 / 15 = 2.0667 (0x4022), from minimum 0: quantized values 0 0 1 1 2 2 3 3 4 4 5 5 6 6 7 7 and
  // 8 more.
  EXPECT_EQ(quantized(GgmlType::q4_1, ramp(0, 32)),
            parts({{0x22, 0x40, 0, 0},
                   {0x80, 0x80, 0x91, 0x91, 0xa2, 0xa2, 0xb3, 0xb3, 0xc4, 0xc4, 0xd5, 0xd5, 0xe6, 0xe6, 0xf7, 0xf7}}));
  // -16 .. 15 with scale 1: quantized values 0 .. 31, whose fifth bits are those of the upper half.
  EXPECT_EQ(quantized(GgmlType::q5_0, ramp(-16, 32)),
            parts({{0x00, 0x3c}, {0, 0, 0xff, 0xff}, counting(0x00, 0x11, 16)}));
  EXPECT_EQ(quantized(GgmlType::q5_1, ramp(0, 32)),
            parts({{0x00, 0x3c, 0, 0}, {0, 0, 0xff, 0xff}, counting(0x00, 0x11, 16)}));
  const std::vector<int> q8 = quantized(GgmlType::q8_0, ramp(0, 32));  // scale 31 / 127
  EXPECT_EQ(std::vector<int>(q8.begin(), q8.begin() + 4), (std::vector<int>{0xd0, 0x33, 0, 4}));
  EXPECT_EQ(q8[2 + 16], 66);
  EXPECT_EQ(q8[2 + 31], 127);
  // The maximum, 6, is the largest value of E2M1, so the scale is 2^0; ties take the smaller value.
  EXPECT_EQ(quantized(GgmlType::mxfp4, {0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.5, -1, -1.5, -2, -3, -4, -6, 5}),
            parts({{127}, counting(0, 1, 8), counting(9, 1, 7), {6}}));
}

TEST(GgmlType, BlocksOf256MatchHandComputedBytes) {
  std::vector<float> values;
  for (int i = 0; i < 256; ++i) values.push_back(float(i % 16));
  // Eight scales of 1, the maximum, so 63 times d = 1 / 63; no minima.
  const std::vector<int> bytes = quantized(GgmlType::q4_k, values);
  EXPECT_EQ(std::vector<int>(bytes.begin(), bytes.begin() + 16),
            (std::vector<int>{0x10, 0x24, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0x0f, 0x0f, 0x0f, 0x0f}));
  for (size_t i = 0; i < 128; ++i) EXPECT_EQ(bytes[16 + i], int(i % 16) * 0x11) << i;
}

TEST(GgmlType, ZerosBecomeZeroScales) {
  // 0 / -8 is -0.
  EXPECT_EQ(quantized(GgmlType::q4_0, {}), parts({{0, 0x80}, std::vector<int>(16, 0x88)}));
  EXPECT_EQ(quantized(GgmlType::q5_0, {}), parts({{0, 0x80, 0xff, 0xff, 0xff, 0xff}, std::vector<int>(16, 0)}));
  for (const GgmlType type : {GgmlType::q4_1, GgmlType::q5_1, GgmlType::q8_0, GgmlType::q4_k, GgmlType::q5_k,
                              GgmlType::q6_k, GgmlType::mxfp4})
    EXPECT_EQ(quantized(type, {}), std::vector<int>(size_t(ggml_info(type).bytes), 0)) << ggml_info(type).name;
}

// FNV-1a of 64 bits.
uint64_t fingerprint(std::span<const std::byte> bytes) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const std::byte b : bytes) hash = (hash ^ uint64_t(b)) * 0x100000001b3;
  return hash;
}

constexpr int64_t kRows = 8, kColumns = 512;

// Rows of decreasing size with large values, one that is partly zero and one without negative values.
std::vector<float> sample() {
  std::vector<float> x(kRows * kColumns);
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t row = i / size_t(kColumns);
    const uint64_t hash = uint64_t(i) * 2654435761u % (uint64_t{1} << 32);
    x[i] = std::ldexp(float(double(hash >> 8) / 16777216.0 - 0.5), -5 * int(row)) * (i % 37 == 0 ? 16.0f : 1.0f);
    if (row == 3 && i % size_t(kColumns) < 300) x[i] = 0;
    if (row == 5) x[i] = std::fabs(x[i]);
  }
  return x;
}

struct Fingerprints {
  GgmlType type;
  uint64_t plain, weighted, values;
};
constexpr Fingerprints kOfGgml[] = {
    {GgmlType::q4_0, 0x145f1041307796fa, 0xc508593ed1b0b2cb, 0x056b85387cc0f9de},
    {GgmlType::q4_1, 0x86acbef6a2994940, 0x40255daaef0af568, 0x0d9319e80fce3842},
    {GgmlType::q5_0, 0xdb6541a8377d64b8, 0xeedb1e4d9c5c1ea2, 0xfbb97adffb21dcd7},
    {GgmlType::q5_1, 0x98c652bb57ff5b42, 0x5fa00f9cf44cd05f, 0xcd528b7d307a3183},
    {GgmlType::q8_0, 0x4aafad623d86748b, 0x4aafad623d86748b, 0x31a11076d16bbf79},
    {GgmlType::q4_k, 0xd43d0cd17c422052, 0xf87b89d91ea9ceda, 0xc6b3eedbd97303d1},
    {GgmlType::q5_k, 0x11af9cb6d166728d, 0x20b82cef13ac4c35, 0xc26f626ba4c2d39c},
    {GgmlType::q6_k, 0xcdbadddc539cf79e, 0xac032c9210b4e26c, 0x65300b992d6e95e3},
};

TEST(GgmlType, BytesAndValuesMatchGgml) {
  const std::vector<float> x = sample();
  std::vector<float> importance, values;
  for (int64_t j = 0; j < kColumns; ++j) importance.push_back(float(1 + j * 7 % 13));
  for (const Fingerprints& expected : kOfGgml) {
    const char* name = ggml_info(expected.type).name;
    std::vector<std::byte> plain, weighted;
    append_ggml(expected.type, {.values = x, .columns = kColumns, .what = name}, nullptr, plain);
    append_ggml(expected.type, {.values = x, .columns = kColumns, .importance = importance, .what = name}, nullptr,
                weighted);
    EXPECT_EQ(fingerprint(plain), expected.plain) << name;
    EXPECT_EQ(fingerprint(weighted), expected.weighted) << name << " with importance";
    read_ggml(expected.type, plain, values);
    EXPECT_EQ(fingerprint(std::as_bytes(std::span(values))), expected.values) << name << " as values";
  }
}

TEST(GgmlType, BytesDoNotDependOnThreads) {
  std::vector<float> x;
  for (int copy = 0; copy < 12; ++copy) {
    const std::vector<float> more = sample();
    x.insert(x.end(), more.begin(), more.end());
  }
  ThreadPool pool(3);
  std::vector<std::byte> alone, together;
  append_ggml(GgmlType::q4_k, {.values = x, .columns = kColumns, .what = "t"}, nullptr, alone);
  append_ggml(GgmlType::q4_k, {.values = x, .columns = kColumns, .what = "t"}, &pool, together);
  EXPECT_TRUE(alone == together);
}

TEST(GgmlType, ScalesBeyondF16AreRefused) {
  for (const Fingerprints& f : kOfGgml) {
    std::vector<float> values(size_t(ggml_info(f.type).block), 1.0f);
    std::vector<std::byte> out;
    for (const float value : {-3e8f, 3e38f}) {
      values[3] = value;
      EXPECT_ERROR(
          append_ggml(f.type, {.values = values, .columns = int64_t(values.size()), .what = "blk.0"}, nullptr, out),
          "blk.0", "too large", ggml_info(f.type).name);
    }
    values[3] = INFINITY;
    EXPECT_ERROR(
        append_ggml(f.type, {.values = values, .columns = int64_t(values.size()), .what = "blk.0"}, nullptr, out),
        "blk.0", "inf");
  }
}

}  // namespace
}  // namespace athanor::test
