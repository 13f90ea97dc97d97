// The tile unit of AMX: its emulation against plain loops, the hardware against the emulation.
#include <gtest/gtest.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/rng.h"
#include "cpu/gemm_blocked.h"
#include "tests/cpu/tile_unit.h"

namespace athanor {
namespace {

uint32_t units_from(float low, float high) {
  return uint32_t(from_float<bf16>(low).bits) | uint32_t(from_float<bf16>(high).bits) << 16;
}

struct Tiles {
  alignas(64) float c[256];  // [16][16], like a and b
  alignas(64) uint32_t a[256], b[256];
  explicit Tiles(uint64_t stream, float size) {
    for (int i = 0; i < 256; ++i) {
      const auto x = [&](uint64_t which) { return size * random_normal(1, 8 * stream + which, uint64_t(i)); };
      c[i] = x(0);
      a[i] = units_from(x(1), x(2));
      b[i] = units_from(x(3), x(4));
    }
  }
  testing::TileProduct product() { return {.c = c, .a = a, .b = b, .rows = 16, .cols = 16, .units = 16}; }
};

#if defined(__x86_64__)
TEST(TileUnit, EmulationMultipliesBf16Pairs) {
  Tiles t(1, 1), before = t;
  testing::tile_product(t.product());
  const auto half = [](uint32_t unit, bool high) {
    return double(std::bit_cast<float>(high ? unit & 0xffff0000 : unit << 16));
  };
  for (int m = 0; m < 16; ++m)
    for (int n = 0; n < 16; ++n) {
      double sum = double(before.c[m * 16 + n]);
      for (int k = 0; k < 16; ++k)
        for (const bool high : {false, true}) sum += half(t.a[m * 16 + k], high) * half(t.b[k * 16 + n], high);
      EXPECT_NEAR(double(t.c[m * 16 + n]), sum, 1e-5) << m << " " << n;
    }
}

TEST(TileUnit, EmulationFlushesDenormalsToZero) {
  Tiles t(1, 0);
  t.a[0] = units_from(0x1p-130f, 0);  // a denormal bf16
  t.b[0] = units_from(0x1p100f, 0);
  t.a[16] = units_from(0x1p-100f, 0);
  t.b[1] = units_from(0x1p-30f, 0);  // times 2^-100: a denormal f32
  testing::tile_product(t.product());
  EXPECT_EQ(t.c[0], 0);
  EXPECT_EQ(t.c[17], 0);
  EXPECT_EQ(t.c[16], 1);
}

// Ordinary numbers, numbers whose products overflow and underflow f32, infinities and NaN.
#pragma GCC push_options
#pragma GCC target("amx-tile,amx-bf16")
TEST(TileUnit, HardwareMatchesTheEmulationBitExactly) {
  if (!cpu_has(Isa::amx_bf16)) GTEST_SKIP() << "this CPU has no AMX";
  struct alignas(64) {
    uint8_t palette = 1, start = 0, reserved[14] = {};
    uint16_t bytes[16] = {64, 64, 64};
    uint8_t rows[16] = {16, 16, 16};
  } config;
  for (uint64_t stream = 0; stream < 40; ++stream) {
    Tiles t(stream, std::ldexp(1.0f, int(stream % 8) * 30 - 120)), want = t;
    if (stream >= 32) {
      t.a[3 * 16 + 5] = units_from(std::numeric_limits<float>::infinity(), 1);
      t.b[5 * 16 + 7] = units_from(std::numeric_limits<float>::quiet_NaN(), 1);
      want = t;
    }
    testing::tile_product(want.product());
    asm volatile("" ::: "memory");
    _tile_loadconfig(&config);
    _tile_loadd(0, t.c, 64);
    _tile_loadd(1, t.a, 64);
    _tile_loadd(2, t.b, 64);
    _tile_dpbf16ps(0, 1, 2);
    _tile_stored(0, t.c, 64);
    _tile_release();
    asm volatile("" ::: "memory");
    for (int i = 0; i < 256; ++i)
      EXPECT_TRUE(std::memcmp(&t.c[i], &want.c[i], 4) == 0 || (std::isnan(t.c[i]) && std::isnan(want.c[i])))
          << "stream " << stream << " element " << i << ": " << t.c[i] << ", expected " << want.c[i];
  }
}
#pragma GCC pop_options

// A thread that has finished a GEMM has released its tiles, so that a context switch saves none; the kernels' machine
// code has run.
TEST(TileUnit, RunsTheGemmKernelAndReleasesTiles) {
  const Kernels* kern = testing::all_kernels().back();
  if (kern->by_column_pairs || !kern->by_row_pairs) GTEST_SKIP() << "this CPU has no AVX-512 with bf16";
  const int64_t before = testing::emulated_instructions(), n = 40;
  std::vector<bf16> a(size_t(n * n), from_float<bf16>(1)), b = a;
  std::vector<float> d(size_t(n * n));
  const Gemm op{
      .d = {d.data(), DType::f32, {n, n}}, .a = {a.data(), DType::bf16, {n, n}}, .b = {b.data(), DType::bf16, {n, n}}};
  ThreadPool pool(1);
  std::vector<float> scratch(gemm_blocked_scratch(op, *kern, 1) / 4);
  gemm_blocked(op, *kern, pool, scratch.data());
  for (const float x : d) ASSERT_EQ(x, float(n));
  if (cpu_has(Isa::amx_bf16)) return;
  EXPECT_GT(testing::emulated_instructions(), before);
  EXPECT_FALSE(testing::tiles_configured()) << "a thread that has finished keeps tiles";
}
#endif

}  // namespace
}  // namespace athanor
