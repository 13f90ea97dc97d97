// Sums of int8 values are exact on every instruction set that this machine has.
#include <gtest/gtest.h>

#include <vector>

#include "base/rng.h"
#include "cpu/int8_kernel.h"

namespace athanor {
namespace {

// drawn: values from all of -127 .. 127, else all at one end, where 16-bit sums saturate first.
void expect_exact(const char* name, Int8DotsFn dots, int64_t m, int64_t n, int64_t k, bool drawn) {
  std::vector<int8_t> a(size_t(m * k));
  std::vector<uint8_t> w(size_t(n * k));
  std::vector<int32_t> sums(static_cast<size_t>(m)), out(static_cast<size_t>(m * (n + 2)), -1);
  for (size_t i = 0; i < a.size(); ++i) a[i] = int8_t(drawn ? int(random_bits(1, 2, i) % 255) - 127 : 127);
  for (size_t i = 0; i < w.size(); ++i) w[i] = uint8_t(drawn ? 1 + random_bits(3, 4, i) % 255 : i % 2 ? 1 : 255);
  if (!drawn)
    for (size_t i = 1; i < a.size(); i += 2) a[i] = -127;
  for (int64_t i = 0; i < m; ++i)
    for (int64_t c = 0; c < k; ++c) sums[size_t(i)] += a[size_t(i * k + c)];
  dots({.out = out.data(),
        .out_stride = n + 2,
        .a = a.data(),
        .sums = sums.data(),
        .w = w.data(),
        .m = m,
        .n = n,
        .k = k});
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n + 2; ++j) {
      int64_t want = j < n ? 0 : -1;  // nothing is written beyond the columns
      for (int64_t c = 0; c < k && j < n; ++c)
        want += int64_t(a[size_t(i * k + c)]) * (int64_t(w[size_t(j * k + c)]) - 128);
      ASSERT_EQ(out[size_t(i * (n + 2) + j)], want)
          << name << " " << m << "x" << n << "x" << k << " at " << i << ", " << j;
    }
}

TEST(Int8, SumsAreExactOnEveryInstructionSet) {
  int found = 0;
  for (const char* name : {"AVX-512 VNNI", "AVX2", "baseline"}) {
    const Int8DotsFn dots = int8_dots_named(name);
    if (!dots) continue;
    ++found;
    for (const bool drawn : {true, false})
      for (const auto& [m, n, k] : {std::array<int64_t, 3>{1, 1, 1}, {5, 6, 63}, {4, 4, 64}, {7, 9, 200}, {3, 5, 4096}})
        expect_exact(name, dots, m, n, k, drawn);
  }
  EXPECT_GT(found, 0);
  EXPECT_EQ(int8_dots_named("AVX-1024"), nullptr);
}

}  // namespace
}  // namespace athanor
