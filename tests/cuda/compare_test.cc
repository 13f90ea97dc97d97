// Distance between the results of two kernels: explained by rounding, caused by a wrong kernel, and for non-finite
// values.
#include "cuda/compare.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "base/rng.h"
#include "cuda/kernels.h"
#include "tests/cuda/kernel_test.h"

namespace athanor {
namespace {
using cuda::largest_distance;

constexpr int64_t kComparedRows = 150, kComparedColumns = 40,
                  kComparedStride = 48;  // three times 64 rows, the last part incomplete

class Compare : public KernelTest {
 protected:
  // Normally distributed values from a seed, rounded to T; the gaps between rows are NaN.
  template <class T>
  std::vector<T> numbers(uint64_t seed = 1) const {
    std::vector<T> all(size_t(kComparedRows * kComparedStride), from_float<T>(std::numeric_limits<float>::quiet_NaN()));
    for (int64_t i = 0; i < kComparedRows; ++i)
      for (int64_t j = 0; j < kComparedColumns; ++j)
        all[size_t(i * kComparedStride + j)] =
            from_float<T>(random_normal(seed, 0, uint64_t(i * kComparedColumns + j)));
    return all;
  }
  template <class T>
  Tensor matrix(const std::vector<T>& values) {
    const cuda::DeviceMemory& memory = memory_.emplace_back(values.size() * sizeof(T));
    CUDA_CHECK(cudaMemcpy(memory.data(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
    CUDA_CHECK(cudaDeviceSynchronize());
    return Tensor{memory.data(), DTypeOf<T>::value, {kComparedRows, kComparedStride}}.columns(0, kComparedColumns);
  }
  void* scratch_of(const ColumnSum& op) { return memory_.emplace_back(cuda::scratch(op)).data(); }

 private:
  std::vector<cuda::DeviceMemory> memory_;
};

TEST_F(Compare, EqualResultsHaveZeroDistance) {
  const auto same = [&]<class T>() {
    const Tensor x = matrix(numbers<T>()), y = matrix(numbers<T>());
    EXPECT_EQ(largest_distance(x, y, nullptr), 0);
  };
  same.operator()<float>(), same.operator()<bf16>(), same.operator()<f16>();
  const Tensor zeros = matrix(std::vector<float>(size_t(kComparedRows * kComparedStride)));
  EXPECT_EQ(largest_distance(zeros, zeros, nullptr), 0);
  EXPECT_EQ(largest_distance(matrix(numbers<float>()), zeros, nullptr), std::numeric_limits<double>::infinity());
}

TEST_F(Compare, RoundingDifferencesAreAccepted) {
  auto rounded = numbers<float>();
  for (float& x : rounded) x = to_float(from_float<bf16>(x));
  const double distance = largest_distance(matrix(rounded), matrix(numbers<float>()), nullptr);
  EXPECT_GT(distance, 1e-3);
  EXPECT_LT(distance, 0.006);
}

// The distance is relative to the 64 rows with the error: other rows do not reduce it.
TEST_F(Compare, WrongTileIsDetected) {
  for (const int64_t first : {int64_t{0}, int64_t{64}, kComparedRows - 8}) {
    auto wrong = numbers<float>();
    const auto other = numbers<float>(2);
    double apart = 0, all = 0;
    for (int64_t i = first / 64 * 64; i < std::min(kComparedRows, first / 64 * 64 + 64); ++i)
      for (int64_t j = 0; j < kComparedColumns; ++j) {
        const size_t at = size_t(i * kComparedStride + j);
        all += double(wrong[at]) * double(wrong[at]);
        if (i < first || i >= first + 8 || j >= 8) continue;
        apart += std::pow(double(other[at]) - double(wrong[at]), 2);
        wrong[at] = other[at];
      }
    const double distance = largest_distance(matrix(wrong), matrix(numbers<float>()), nullptr);
    EXPECT_NEAR(distance, std::sqrt(apart / all), 1e-6);
    EXPECT_GT(distance, 2 * cuda::kMostDistance);
  }
}

TEST_F(Compare, NanIsDetected) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    auto wrong = numbers<bf16>();
    wrong[size_t(100 * kComparedStride + 3)] = from_float<bf16>(bad);
    const Tensor x = matrix(wrong), y = matrix(numbers<bf16>());
    EXPECT_FALSE(largest_distance(x, y, nullptr) <= cuda::kMostDistance);
    EXPECT_FALSE(largest_distance(y, x, nullptr) <= cuda::kMostDistance);
    EXPECT_FALSE(largest_distance(x, x, nullptr) <= cuda::kMostDistance);
  }
}

// Both candidates start from the same contents; the one that leaves elements unwritten, or adds twice, is named.
TEST_F(Compare, CandidatesStartFromEqualContents) {
  const std::vector<float> halves(size_t(kComparedRows * kComparedStride), 0.5F);
  const auto whole = [&](int64_t rows) { return Tensor{matrix(halves).data, DType::f32, {rows, kComparedStride}}; };
  const Add op{.y = whole(kComparedRows), .a = whole(kComparedRows), .b = whole(kComparedRows)};
  const auto add = [&] { cuda::run(op, nullptr, nullptr); };
  const auto add_some = [&] {
    const int64_t rows = kComparedRows - 1;
    cuda::run(Add{.y = op.y.slice(0, rows), .a = op.a.slice(0, rows), .b = op.b.slice(0, rows)}, nullptr, nullptr);
  };
  EXPECT_EQ(cuda::difference(op, nullptr, add, add), "");
  EXPECT_EQ(cuda::difference(op, nullptr, add, add_some), "y has values that are NaN or were not written");

  const ColumnSum sums{.out = {whole(1).data, DType::f32, {kComparedStride}}, .x = whole(4)};  // adds 2
  const auto sum = [&] { cuda::run(sums, scratch_of(sums), nullptr); };
  const auto twice = [&] { sum(), sum(); };
  EXPECT_EQ(cuda::difference(sums, nullptr, sum, twice), "out differs by 0.8 of its size, by more than 0.02");
  EXPECT_EQ(cuda::difference(sums, nullptr, sum, sum), "");
}

}  // namespace
}  // namespace athanor
