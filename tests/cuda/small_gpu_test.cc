// Kernels with much shared memory on a GPU with 99 KiB per block, like those of compute capability 8.6, 8.9 and 12.0:
// results are right, or the op is refused by name. The other tests of this folder run on an H200, with 227 KiB.
#ifdef ATHANOR_EMULATED_GPU
#include "emulator/runtime/control.h"
#include "tests/cuda/kernel_test.h"

namespace athanor {
namespace {

class SmallGpu : public KernelTest {
 protected:
  void SetUp() override { emu::simulate({emu::gpu_rtx4090()}); }
  void TearDown() override { emu::simulate({emu::gpu_h200()}); }
};

// As much of each row as fits in half of a multiprocessor's shared memory is kept there.
TEST_F(SmallGpu, CrossEntropyMatchesReference) {
  Examiner examine(make_cuda_backend, {.threads = {2}});
  for (const DType dtype : {DType::f32, DType::bf16}) {
    OpCase<CrossEntropy> c{cat(dtype),
                           {.logits = tensor(dtype, {1, 50304}),
                            .losses = tensor(DType::f32, {1}),
                            .targets = tensor(DType::i32, {1}),
                            .scale = tensor(DType::f32, {1}),
                            .inv_count = 0.25f,
                            .vocab = 50257}};
    c.values["scale"] = constant(2);
    c.values["targets"] = below(50257);
    examine(c);
  }
  EXPECT_TRUE(examine.findings().empty()) << examine.report();
}

TEST_F(SmallGpu, AttentionMatchesReference) {
  agrees_with_the_reference(AttentionFwd::kName, attention_cases, 3);
  agrees_with_the_reference(AttentionBwd::kName, attention_cases, 3);
}

TEST_F(SmallGpu, HeadNormsMatchReference) { agrees_with_the_reference(QkNormBwd::kName, norm_cases); }

// Two sums per column of a row that is not a multiple of a vector, next to 1 KiB that the kernel needs itself.
TEST_F(SmallGpu, NormsOfTheLongestRowsMatchReference) {
  Examiner examine(make_cuda_backend, {.threads = {2}});
  for (const int64_t columns : {12543, 12545, 12673}) {
    const Tensor x = tensor(DType::f32, {1, columns}), w = tensor(DType::f32, {columns});
    const Tensor column = tensor(DType::f32, {1});
    OpCase<NormBwd> c{
        cat(columns),
        {.kind = NormKind::layer, .dh = x, .dw = w, .db = w, .dy = x, .h = x, .mean = column, .rstd = column, .w = w}};
    c.values["rstd"] = uniform(0.5, 1.5);
    examine(c);
  }
  ASSERT_EQ(examine.findings().size(), 2U) << examine.report();
  EXPECT_NE(examine.findings()[0].detail.find("rows of 12545 columns need 100360 bytes"), std::string::npos)
      << examine.report();
}
}  // namespace
}  // namespace athanor
#endif
