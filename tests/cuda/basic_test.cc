// The kernels of cuda/basic.cu, dropout.cu, nf4.cu, dora.cu and two_of_four.cu run the op cases; also long buffers,
// unaligned memory, sums over many ranges, and moments of random values.
#include <cmath>
#include <cstring>

#include "base/rng.h"
#include "tests/cuda/kernel_test.h"
#include "tests/ops/guarded.h"

namespace athanor {
namespace {

class Basic : public KernelTest {};

TEST_F(Basic, NeedsNoAlignment) {
  needs_no_alignment(Fill::kName, basic_cases, 9);
  needs_no_alignment(Cast::kName, basic_cases, 9);
  needs_no_alignment(Add::kName, basic_cases, 7);
  needs_no_alignment(SquaredNorm::kName, basic_cases, 3);
  needs_no_alignment(RandomNormal::kName, basic_cases, 9);
}

// Sizes in 16-bit types: a multiple of a tile, and one with a remainder.
TEST_F(Basic, LongBuffersMatchReference) {
  Examiner examine(make_cuda_backend, {.threads = {2}});
  for (const int64_t n : {3 * 8192, 2 * 8192 + 13}) {
    const Tensor f = tensor(DType::f32, {n}), b = tensor(DType::bf16, {n}), h = tensor(DType::f16, {n});
    examine(OpCase<Fill>{cat(n), {.x = b, .value = 0.7f}, {}, true});
    examine(OpCase<Cast>{cat(n, " f16 of bf16"), {.y = h, .x = b}, {}, true});
    examine(OpCase<Cast>{cat(n, " f32 of bf16"), {.y = f, .x = b}, {}, true});
    examine(OpCase<Cast>{cat(n, " f32"), {.y = f, .x = f}, {}, true});
    examine(OpCase<Add>{cat(n, " f32 onto a"), {.y = f, .a = f, .b = f}, {}, true, {{"y", "a"}}});
    examine(OpCase<Add>{cat(n, " f16 onto b"), {.y = h, .a = h, .b = h}, {}, true, {{"y", "b"}}});
  }
  EXPECT_TRUE(examine.findings().empty()) << examine.report();
}

// More than one tile per range: the bounds of ranges depend only on n, and every schedule gives the same bits.
TEST_F(Basic, SumsOfLongRangesAreBitExact) {
  const TestBackend b = make_cuda_backend(2);
  const int64_t n = (int64_t{512} + 3) * 4096 + 5;
  std::vector<std::byte> values(size_t(n) * sizeof(float));
  double want = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float x = float(i % 1021) * 0.01f - 3;
    std::memcpy(values.data() + size_t(i) * sizeof x, &x, sizeof x);
    want += double(x) * double(x);
  }
  Guarded x(*b.device, tensor(DType::f32, {n}), 1), out(*b.device, tensor(DType::f64, {1}), 1);
  x.write(values);
  const SquaredNorm op{.out = out.tensor(), .x = {x.tensor()}};
  Guarded scratch(*b.device, tensor(DType::u8, {int64_t(b.ops->scratch(op))}), 1);
  scratch.write(std::vector<std::byte>(scratch.tensor().bytes()));
  std::vector<double> sums;
  for (int run = 0; run < 2; ++run) {
    out.write(std::vector<std::byte>(sizeof(double)));
    b.ops->run(op, scratch.tensor().data);
    double sum = 0;
    std::memcpy(&sum, out.read().data(), sizeof sum);
    sums.push_back(sum);
  }
  EXPECT_NEAR(sums[0], want, 1e-10 * want);
  EXPECT_EQ(sums[0], sums[1]);
  scratch.read();
  EXPECT_EQ(scratch.damage(), std::nullopt);
}

TEST_F(Basic, RandomValuesHaveNormalMoments) {
  const TestBackend b = make_cuda_backend(2);
  constexpr int64_t n = 20000;
  Guarded x(*b.device, tensor(DType::f32, {n}), 1);
  b.ops->run(RandomNormal{.x = x.tensor(), .seed = 9, .stream = stream_of("moments"), .mean = 3, .std = 2}, nullptr);
  double moments[5] = {};
  for (const double value : decoded(DType::f32, x.read()))
    for (int k = 1; k <= 4; ++k) moments[k] += std::pow((value - 3) / 2, k) / double(n);
  EXPECT_NEAR(moments[1], 0, 4 / std::sqrt(double(n)));  // variances of the moments of a normal distribution: 1, 2, 15,
                                                         // 96
  EXPECT_NEAR(moments[2], 1, 4 * std::sqrt(2 / double(n)));
  EXPECT_NEAR(moments[3], 0, 4 * std::sqrt(15 / double(n)));
  EXPECT_NEAR(moments[4], 3, 4 * std::sqrt(96 / double(n)));
}

#ifdef ATHANOR_EMULATED_GPU
TEST(BasicBudget, AccessesAreCoalescedAndFreeOfConflicts) {
  const AccessBudget budget;
  constexpr int64_t n = 2 * 8192;
  const Tensor f = budget.tensor(DType::f32, {n}), b = budget.tensor(DType::bf16, {n});
  const Tensor sum = budget.tensor(DType::f64, {1});
  EXPECT_EQ(budget.check(Fill{.x = f}, Cast{.y = b, .x = f}, Cast{.y = f, .x = b}, Cast{.y = b, .x = b},
                         Add{.y = b, .a = b, .b = b}, Add{.y = f, .a = f, .b = f}, Add{.y = f, .a = f, .b = b},
                         ReduceSum{.out = sum, .x = f}, SquaredNorm{.out = sum, .x = {f}}, RandomNormal{.x = b},
                         RandomNormal{.x = f}),
            "");
}
#endif
}  // namespace
}  // namespace athanor
