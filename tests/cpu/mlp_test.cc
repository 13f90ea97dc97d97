// Activations against their formulas in double, at ordinary and extreme values; outputs over inputs.
#include <limits>

#include "tests/cpu/host_tensor.h"

namespace athanor {
namespace {

double gelu(double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }
double silu(double x) { return x / (1 + std::exp(-x)); }
// Central difference, in double.
double slope(double (*f)(double), double x) { return (f(x + 1e-5) - f(x - 1e-5)) / 2e-5; }

HostTensor ramp(DType type, int64_t n, double from, double to) {
  HostTensor x(type, {1, n});
  for (int64_t i = 0; i < n; ++i) x.set(i, from + (to - from) * double(i) / double(n));
  return x;
}

TEST(Gelu, ForwardAndBackwardMatchTheDefinition) {
  for (DType type : kFloats)
    for (int64_t n : {1, 15, 1001}) {
      const HostTensor x = ramp(type, n, -12, 12), dy = HostTensor::normal(type, {1, n}, 1);
      HostTensor y(type, {1, n}), dx = dy;
      run_op(GeluFwd{y.t, x.t});
      run_op(GeluBwd{dx.t, dx.t, x.t});  // over its input
      for (int64_t i = 0; i < n; ++i) {
        expect_near(y[i], gelu(x[i]), tolerance(type), "y", i);
        expect_near(dx[i], dy[i] * slope(gelu, x[i]), tolerance(type), "dx", i);
      }
    }
}

// Far out the slope is 0 or 1, never NaN; small results keep relative precision (no 1 + tanh cancellation).
TEST(Gelu, ExtremeValuesAreFiniteAndPrecise) {
  const double values[] = {-1e18, -100, -5.5, -4, 1e-30, 100, 1e18};
  HostTensor x(DType::f32, {1, 7}), y(DType::f32, {1, 7}), dx(DType::f32, {1, 7}), dy(DType::f32, {1, 7});
  for (int64_t i = 0; i < 7; ++i) x.set(i, values[i]), dy.set(i, 1);
  run_op(GeluFwd{y.t, x.t});
  run_op(GeluBwd{dx.t, dy.t, x.t});
  for (int64_t i = 0; i < 7; ++i) {
    const double u = 2 * std::sqrt(2 / M_PI) * (x[i] + 0.044715 * x[i] * x[i] * x[i]), e = std::exp(-u);
    EXPECT_NEAR(y[i], std::isinf(e) ? 0 : x[i] / (1 + e), 4e-6 * std::abs(y[i])) << x[i];
  }
  EXPECT_EQ(dx[0], 0);
  EXPECT_EQ(dx[6], 1);
}

TEST(Swiglu, ForwardAndBackwardMatchTheDefinition) {
  for (DType type : kFloats)
    for (int64_t f : {1, 17, 300}) {
      const int64_t n = 3;
      const HostTensor gu = HostTensor::normal(type, {n, 2 * f}, 1, 0, 4), dy = HostTensor::normal(type, {n, f}, 2);
      HostTensor y(type, {n, f}), dgu(type, {n, 2 * f}), in_place = gu;
      run_op(SwigluFwd{y.t, gu.t});
      run_op(SwigluBwd{dgu.t, dy.t, gu.t});
      run_op(SwigluBwd{in_place.t, dy.t, in_place.t});
      EXPECT_EQ(dgu.bytes(), in_place.bytes());
      for (int64_t i = 0; i < n * f; ++i) {
        const int64_t g_at = i / f * 2 * f + i % f, u_at = g_at + f;
        const double g = gu[g_at], u = gu[u_at];
        expect_near(y[i], silu(g) * u, tolerance(type), "y", i);
        expect_near(dgu[g_at], dy[i] * u * slope(silu, g), tolerance(type), "dgate", i);
        expect_near(dgu[u_at], dy[i] * silu(g), tolerance(type), "dup", i);
      }
    }
}

TEST(Swiglu, ExtremeGatesNeitherOverflowNorHideNan) {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
  const double gates[] = {-3e38, -200, 200, 3e38, nan};
  HostTensor gu(DType::f32, {5, 2}), y(DType::f32, {5, 1}), dgu(DType::f32, {5, 2}), dy(DType::f32, {5, 1});
  for (int64_t i = 0; i < 5; ++i) gu.set(2 * i, gates[i]), gu.set(2 * i + 1, 0.5), dy.set(i, 1);
  run_op(SwigluFwd{y.t, gu.t});
  run_op(SwigluBwd{dgu.t, dy.t, gu.t});
  EXPECT_EQ(y[0], 0);
  EXPECT_EQ(y[2], 100);
  EXPECT_LT(y[3], inf);
  EXPECT_EQ(dgu[0], 0);
  EXPECT_EQ(dgu[4], 0.5);
  EXPECT_TRUE(std::isnan(y[4]));
  EXPECT_TRUE(std::isnan(dgu[8]));
}

TEST(Activations, BitsDoNotDependOnThreads) {
  const HostTensor gu = HostTensor::normal(DType::bf16, {403, 514}, 1),
                   dy = HostTensor::normal(DType::bf16, {403, 257}, 2);
  expect_same_bits([&](int threads) {
    HostTensor y(DType::bf16, {403, 257}), dgu(DType::bf16, {403, 514}), z(DType::bf16, {403, 514}), dx = z;
    run_op(SwigluFwd{y.t, gu.t}, threads);
    run_op(SwigluBwd{dgu.t, dy.t, gu.t}, threads);
    run_op(GeluFwd{z.t, gu.t}, threads);
    run_op(GeluBwd{dx.t, z.t, gu.t}, threads);
    return std::vector<HostTensor>{y, dgu, z, dx};
  });
}

}  // namespace
}  // namespace athanor
