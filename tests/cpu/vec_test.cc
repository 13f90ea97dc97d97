// Vectors: every instruction set of this CPU gives the bits of the scalar conversions and of all other instruction
// sets.
#include "cpu/vec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/rng.h"

namespace athanor {
namespace {

using simd::Vec;

// Runs the kernel on every instruction set there is.
template <class Kernel, class... A>
void on_all(const A&... args) {
  Kernel::template run<4>(args...);
#if defined(__x86_64__)
  if (cpu_has(Isa::avx2)) simd::run_avx2<Kernel>(args...);
  if (cpu_has(Isa::avx512)) simd::run_avx512<Kernel>(args...);
#endif
}

template <class T>
uint32_t bits_of(T x) {
  if constexpr (sizeof(T) == 2)
    return x.bits;
  else
    return std::bit_cast<uint32_t>(x);
}

// y = x + 0 through vector lanes in the row order of Order; the column numbers next to them.
template <class Order>
struct CopyThrough {
  template <int L, class To, class From>
  static ATHANOR_INLINE void run(std::vector<std::vector<To>>* out, const From* x, int64_t n) {
    std::vector<To> y(size_t(n) + 1);
    y.back() = from_float<To>(7);
    To* row = y.data();
    simd::for_columns<L, Order>(n, [&](auto at) ATHANOR_INLINE_LAMBDA { at.store(row, at.load(x)); });
    out->push_back(y);
  }
};

template <class Order, class To, class From>
void expect_conversions() {
  for (int64_t n : {1, 31, 32, 33, 65536}) {
    std::vector<From> x(static_cast<size_t>(n));
    for (size_t i = 0; i < x.size(); ++i) {
      if constexpr (sizeof(From) == 2)
        x[i].bits = uint16_t(i * 40503u);
      else
        x[i] = std::bit_cast<float>(uint32_t(i) << 16 | (random_bits(1, 2, i) & 0xffffu));
    }
    std::vector<std::vector<To>> results;
    on_all<CopyThrough<Order>>(&results, static_cast<const From*>(x.data()), n);
    for (const std::vector<To>& y : results) {
      for (size_t i = 0; i < x.size(); ++i)
        ASSERT_EQ(bits_of(y[i]), bits_of(from_float<To>(to_float(x[i])))) << i << " of " << n;
      ASSERT_EQ(to_float(y.back()), 7) << "written past the end of " << n;
    }
  }
}

TEST(Vec, ConversionsMatchScalarOnes) {
  expect_conversions<float, float, float>();
  expect_conversions<float, bf16, float>();
  expect_conversions<float, float, f16>();
  expect_conversions<float, f16, bf16>();
  expect_conversions<bf16, bf16, float>();
  expect_conversions<bf16, float, bf16>();
  expect_conversions<bf16, f16, float>();
  expect_conversions<bf16, float, f16>();
}

struct Exponentials {
  template <int L>
  static ATHANOR_INLINE void run(std::vector<std::vector<float>>* out, const float* x, int64_t n) {
    std::vector<float> y(static_cast<size_t>(n));
    float* row = y.data();
    simd::for_columns<L, float>(
        n, [&](auto at) ATHANOR_INLINE_LAMBDA { at.store(row, simd::exp_nonpositive(at.load(x))); });
    out->push_back(y);
  }
};

TEST(Vec, ExponentialIsWithinOneAndAHalfUlps) {
  std::vector<float> x;
  for (int i = 0; i <= 200000; ++i) x.push_back(-float(i) * (86.9f / 200000));
  std::vector<std::vector<float>> results;
  on_all<Exponentials>(&results, static_cast<const float*>(x.data()), int64_t(x.size()));
  for (const auto& y : results)
    for (size_t i = 0; i < x.size(); ++i) {
      const double exact = std::exp(double(x[i])), ulp = std::ldexp(1.0, std::ilogb(exact) - 23);
      ASSERT_LT(std::abs(double(y[i]) - exact), 1.5 * ulp) << x[i];
    }
}

TEST(Vec, ExponentialHandlesOverflowUnderflowAndNan) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> x = {0, -0.0f, -88, -1e30f, -inf, std::nanf("")};
  std::vector<std::vector<float>> results;
  on_all<Exponentials>(&results, static_cast<const float*>(x.data()), int64_t(x.size()));
  for (const auto& y : results) {
    EXPECT_EQ(y[0], 1);
    EXPECT_EQ(y[1], 1);
    for (size_t i : {2, 3, 4}) EXPECT_EQ(y[i], 0);
    EXPECT_TRUE(std::isnan(y[5]));
  }
}

// Sum, maximum and square roots of a row, with a guard for the lanes past its end.
template <class Order>
struct Folds {
  template <int L>
  static ATHANOR_INLINE void run(std::vector<std::vector<float>>* out, const float* x, int64_t n) {
    Vec<L> sum = simd::broadcast<L>(0), most = simd::broadcast<L>(-100);
    std::vector<float> y(static_cast<size_t>(n));
    float* row = y.data();
    simd::for_columns<L, Order>(n, [&](auto at) ATHANOR_INLINE_LAMBDA {
      const Vec<L> v = at.load(x);
      sum += at.or_else(v, 0);
      most = simd::max(at.or_else(v, -100), most);
      at.store(row, simd::sqrt(at.or_else(v * v, 4)));
    });
    y.push_back(simd::sum(sum));
    y.push_back(simd::max(most));
    out->push_back(y);
  }
};

TEST(Vec, ReductionsMatchAcrossInstructionSets) {
  for (int64_t n : {1, 15, 32, 45, 100}) {
    const auto size = size_t(n);
    std::vector<float> x(size);
    double sum = 0, most = -100;
    for (size_t i = 0; i < size; ++i) {
      x[i] = random_normal(1, 2, uint64_t(i)) - 3;
      sum += double(x[i]);
      most = std::max(most, double(x[i]));
    }
    std::vector<std::vector<float>> results;
    on_all<Folds<float>>(&results, static_cast<const float*>(x.data()), n);
    on_all<Folds<bf16>>(&results, static_cast<const float*>(x.data()), n);
    for (const auto& y : results) {
      EXPECT_NEAR(y[size], sum, 1e-5 * std::abs(sum));
      EXPECT_EQ(y[size + 1], most);
      for (size_t i = 0; i < size; ++i) ASSERT_EQ(y[i], -x[i]) << i;
    }
    for (size_t k = 1; k < results.size() / 2; ++k) EXPECT_EQ(results[k], results[0]) << "instruction set " << k;
  }
}

}  // namespace
}  // namespace athanor
