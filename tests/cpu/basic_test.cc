// Element-wise ops, sums and initial values.
#include <limits>

#include "cpu/chunks.h"
#include "tests/cpu/host_tensor.h"

namespace athanor {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

TEST(Fill, WritesEveryDtype) {
  for (int64_t n : {1, 31, 40000}) {
    for (DType type : {DType::f32, DType::bf16, DType::f16, DType::i32, DType::f64}) {
      HostTensor x(type, {n});
      run_op(Fill{x.t, 3});
      for (int64_t i = 0; i < n; ++i) ASSERT_EQ(x[i], 3);
    }
    HostTensor bytes(DType::u8, {n}), longs(DType::i64, {n});
    run_op(Fill{bytes.t, 200});
    run_op(Fill{longs.t, -5});
    for (int64_t i = 0; i < n; ++i) ASSERT_EQ(bytes.t.as<uint8_t>()[i], 200);
    for (int64_t i = 0; i < n; ++i) ASSERT_EQ(longs.t.as<int64_t>()[i], -5);
  }
}

template <class T>
void expect_scalar_conversions() {
  const int64_t n = 65536;
  HostTensor x(DTypeOf<T>::value, {n}), wide(DType::f32, {n}), back(DTypeOf<T>::value, {n});
  for (int64_t i = 0; i < n; ++i) x.t.as<T>()[i].bits = uint16_t(i);
  run_op(Cast{wide.t, x.t});
  for (int64_t i = 0; i < n; ++i)
    ASSERT_EQ(std::bit_cast<uint32_t>(to_float(x.t.as<T>()[i])), std::bit_cast<uint32_t>(wide.t.as<float>()[i])) << i;
  for (uint32_t offset : {0x7fffu, 0x8000u, 0x8001u, 0x0fffu, 0x1000u, 0x1001u}) {
    HostTensor shifted = wide;
    for (int64_t i = 0; i < n; ++i) static_cast<uint32_t*>(shifted.t.data)[i] += offset;
    run_op(Cast{back.t, shifted.t});
    for (int64_t i = 0; i < n; ++i)
      ASSERT_EQ(back.t.as<T>()[i].bits, from_float<T>(shifted.t.as<float>()[i]).bits) << i;
  }
}

// The vectorised conversions are those of tensor/half.h, for every 16-bit pattern and around every rounding boundary.
TEST(Cast, MatchesScalarConversion) {
  expect_scalar_conversions<bf16>();
  expect_scalar_conversions<f16>();
}

TEST(Cast, ConvertsEveryPairOfDtypes) {
  for (DType to : kFloats)
    for (DType from : kFloats) {
      const HostTensor x = HostTensor::normal(from, {3, 333}, 1);
      HostTensor y(to, {3, 333});
      run_op(Cast{y.t, x.t});
      for (int64_t i = 0; i < 999; ++i)
        by_float(to, [&]<class T>() { ASSERT_EQ(y[i], double(to_float(from_float<T>(float(x[i]))))); });
    }
}

TEST(Add, SupportsInPlaceOutputs) {
  for (DType type : kFloats)
    for (int64_t n : {1, 50, 40001}) {
      const HostTensor a = HostTensor::normal(type, {n}, 1), b = HostTensor::normal(type, {n}, 2);
      HostTensor y(type, {n}), over_a = a, over_b = b, twice = a;
      run_op(Add{y.t, a.t, b.t});
      run_op(Add{over_a.t, over_a.t, b.t});
      run_op(Add{over_b.t, a.t, over_b.t});
      run_op(Add{twice.t, twice.t, twice.t});
      EXPECT_EQ(over_a.bytes(), y.bytes());
      EXPECT_EQ(over_b.bytes(), y.bytes());
      for (int64_t i = 0; i < n; ++i) {
        by_float(type, [&]<class T>() { ASSERT_EQ(y[i], double(to_float(from_float<T>(float(a[i] + b[i]))))); });
        ASSERT_EQ(twice[i], 2 * a[i]);
      }
    }
}

TEST(Sums, AccumulateInDouble) {
  for (int64_t n : {int64_t(0), int64_t(1), int64_t(17), 3 * kChunkElements + 5}) {
    const HostTensor x = HostTensor::normal(DType::f32, {n}, 1, 1);
    HostTensor sum(DType::f64, {1}), squares(DType::f64, {1});
    sum.set(0, 10);
    squares.set(0, 20);
    double expected = 10, expected_squares = 20;
    for (int64_t i = 0; i < n; ++i) expected += x[i], expected_squares += x[i] * x[i];
    run_op(ReduceSum{sum.t, x.t});
    run_op(SquaredNorm{squares.t, {x.t}});
    EXPECT_NEAR(sum[0], expected, 1e-12 * std::abs(expected));
    EXPECT_NEAR(squares[0], expected_squares, 1e-12 * expected_squares);
  }
}

TEST(Sums, BitsDoNotDependOnThreads) {
  const HostTensor x = HostTensor::normal(DType::f32, {7 * kChunkElements + 100}, 1, 0, 1e3);
  expect_same_bits([&](int threads) {
    HostTensor sum(DType::f64, {1}), squares(DType::f64, {1});
    run_op(ReduceSum{sum.t, x.t}, threads);
    run_op(SquaredNorm{squares.t, {x.t}}, threads);
    return std::vector<HostTensor>{sum, squares};
  });
}

TEST(SquaredNorm, IsExactForTinyHugeAndNonFiniteValues) {
  HostTensor x(DType::f32, {1000});
  const auto norm = [&](double value) {
    x.set(777, value);
    HostTensor out(DType::f64, {1});
    run_op(SquaredNorm{out.t, {x.t}});
    return out[0];
  };
  const double tiny = double(1e-30f), huge = double(1e30f);
  EXPECT_DOUBLE_EQ(norm(1e-30), tiny * tiny);
  EXPECT_DOUBLE_EQ(norm(1e30), huge * huge);
  EXPECT_EQ(norm(kInf), kInf);
  EXPECT_EQ(norm(-kInf), kInf);
  EXPECT_TRUE(std::isnan(norm(std::nan(""))));
}

TEST(RandomNormal, MatchesTheScalarFunctionOfTheIndex) {
  for (DType type : {DType::f32, DType::bf16})
    for (uint64_t first : {uint64_t(0), uint64_t(3), (uint64_t(1) << 40) + 1})
      for (int64_t n : {1, 2, 7, 20001}) {
        HostTensor x(type, {n});
        run_op(RandomNormal{x.t, 11, 22, first, 0.5f, 0.02f}, 3);
        for (int64_t i = 0; i < n; ++i) {
          const float expected = 0.5f + 0.02f * random_normal(11, 22, first + uint64_t(i));
          by_float(type, [&]<class T>() { ASSERT_EQ(x[i], double(to_float(from_float<T>(expected)))) << i; });
        }
      }
}

// Values so near the middle between two floats that the fast evaluation cannot decide.
TEST(RandomNormal, RoundsCorrectlyNearMidpoints) {
  for (uint64_t index : {5663301u, 14449212u, 29270165u, 29597886u, 49030392u}) {
    HostTensor x(DType::f32, {1});
    run_op(RandomNormal{x.t, 11, 22, index, 0, 1});
    EXPECT_EQ(x[0], double(random_normal(11, 22, index))) << index;
  }
}

TEST(RandomNormal, ZeroDeviationFillsWithTheMean) {
  HostTensor x(DType::f32, {100});
  run_op(RandomNormal{x.t, 1, 2, 3, 1.5f, 0});
  for (int64_t i = 0; i < 100; ++i) EXPECT_EQ(x[i], 1.5);
}

}  // namespace
}  // namespace athanor
