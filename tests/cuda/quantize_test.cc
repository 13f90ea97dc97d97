// The kernels of cuda/quantize/quantize.cu, quantize_delayed.cu, quantize_part.cu, quantize_rows.cu and codes.cu run
// the op cases of quantization: values and scales are bit-identical to the reference. GEMMs of quantized operands: by
// the library for every scale layout that it supports, otherwise emulated.
#include "cuda/scratch.h"
#include "tests/cuda/kernel_test.h"
#ifdef ATHANOR_EMULATED_GPU
#include "emulator/runtime/control.h"
#endif

namespace athanor {
namespace {

class QuantizeKernels : public KernelTest {
 protected:
  // Runs one in `every` cases of an op.
  static void agrees(const char* op, void (*family)(Examiner&), int every, int least) {
    Examiner examine(make_cuda_backend, {.threads = {2}, .only = op, .every = every});
    family(examine);
    EXPECT_GT(examine.seen().at(op), least);
    EXPECT_TRUE(examine.findings().empty()) << examine.report();
  }
};

TEST_F(QuantizeKernels, QuantizedValuesAndScalesMatchReference) { agrees(Quantize::kName, quantize_cases, 3, 100); }
TEST_F(QuantizeKernels, DelayedScalesMatchReference) { agrees(DelayedScales::kName, quantize_cases, 5, 5); }
TEST_F(QuantizeKernels, EmulatedGemmsMatchReference) { agrees(ScaledGemm::kName, quantize_cases, 11, 10); }
TEST_F(QuantizeKernels, Fp4QuantizationMatchesReference) { agrees(Quantize::kName, fp4_cases, 2, 30); }
TEST_F(QuantizeKernels, Fp4GemmsMatchReference) { agrees(ScaledGemm::kName, fp4_cases, 5, 5); }
TEST_F(QuantizeKernels, TransposedQuantizationMatchesReference) {
  Examiner examine(make_cuda_backend, {.threads = {2}, .only = Quantize::kName});
  transposed_cases(examine);
  EXPECT_GT(examine.seen().at(Quantize::kName), 100);
  EXPECT_TRUE(examine.findings().empty()) << examine.report();
}
TEST_F(QuantizeKernels, AmaxOfPartsMatchesReference) { agrees(AmaxOfPart::kName, quantize_part_cases, 2, 50); }
TEST_F(QuantizeKernels, QuantizedPartsMatchReference) { agrees(QuantizePart::kName, quantize_part_cases, 3, 100); }
TEST_F(QuantizeKernels, AcceptsAnyAlignment) {
  needs_no_alignment(Quantize::kName, quantize_cases, 37);
  needs_no_alignment(QuantizePart::kName, quantize_part_cases, 23);
}

// Several tiles and bands, and amax histories that exceed one launch's table.
TEST_F(QuantizeKernels, SeveralTilesAndBandsMatchReference) {
  Examiner examine(make_cuda_backend, {.threads = {2}});
  for (const Blocks& blocks : {Blocks{0, 0}, Blocks{1, 0}, Blocks{0, 1}, Blocks{1, 128}, Blocks{128, 128}}) {
    const Shape s{200, 528};
    examine(OpCase<Quantize>{cat("blocks ", blocks.rows, "x", blocks.cols),
                             {.quantized = tensor(DType::f8_e4m3, s),
                              .scales = tensor(DType::f32, blocks.grid(s)),
                              .x = tensor(DType::bf16, s),
                              .blocks = blocks},
                             {},
                             true});
  }
  examine(
      OpCase<DelayedScales>{"150 histories",
                            {.histories = std::vector<Tensor>(150, tensor(DType::f32, {300})),
                             .amax = tensor(DType::f32, {150, 1}),
                             .factors = tensor(DType::f32, {150, 1}),
                             .state = tensor(DType::u8, {int64_t(sizeof(StepState))}),
                             .quantized = {DType::f8_e4m3},
                             .length = 300},
                            {{"amax", uniform(0, 2)}, {"histories", uniform(0, 1)}, {"state", bytes_of(StepState{})}},
                            true});
  EXPECT_TRUE(examine.findings().empty()) << examine.report();
}

// Sizes that the library supports, in every memory order, with all pairs of scales.
void native_products(Examiner& examine, int capability, int* native) {
  constexpr int64_t m = 16, n = 144, k = 144;
  constexpr int64_t kSizes[] = {1, 128};
  const Init scale = uniform(0.001, 0.01);
  for (int flags = 0; flags < 8; ++flags) {
    const bool ta = flags & 1, tb = flags & 2, accumulate = flags & 4;
    const Shape a = ta ? Shape{k, m} : Shape{m, k}, b = tb ? Shape{n, k} : Shape{k, n};
    // Block sizes across and along K; 0: the whole extent.
    constexpr std::pair<int64_t, int64_t> kScales[] = {{0, 0}, {1, 0}, {kSizes[0], kSizes[1]}, {kSizes[1], kSizes[1]}};
    for (const auto& [across_a, along_a] : kScales)
      for (const auto& [across_b, along_b] : kScales) {
        const Blocks of_a = ta ? Blocks{along_a, across_a} : Blocks{across_a, along_a};
        const Blocks of_b = tb ? Blocks{across_b, along_b} : Blocks{along_b, across_b};
        const DType d = accumulate ? DType::f32 : DType::bf16;
        ScaledGemm op{.gemm = {.d = tensor(d, {m, n}),
                               .a = tensor(flags & 1 ? DType::f8_e5m2 : DType::f8_e4m3, a),
                               .b = tensor(flags == 2 ? DType::f8_e5m2 : DType::f8_e4m3, b),
                               .ta = ta,
                               .tb = tb,
                               .accumulate = accumulate},
                      .a_scales = tensor(DType::f32, of_a.grid(a)),
                      .b_scales = tensor(DType::f32, of_b.grid(b)),
                      .a_blocks = of_a,
                      .b_blocks = of_b,
                      .fast = flags == 0};
        if (!accumulate && flags != 0) op.gemm.bias = tensor(DType::bf16, {n});
        if (flags == 3) op.gemm.epilogue = Epilogue::add, op.gemm.aux = op.gemm.d;
        *native += cuda::NativeGemm(op, capability).possible;
        examine(OpCase<ScaledGemm>{cat(ta ? " ta" : "", tb ? " tb" : "", accumulate ? " accumulate" : "", " ", across_a,
                                       "x", along_a, " by ", across_b, "x", along_b),
                                   op,
                                   {{"a_scales", scale}, {"b_scales", scale}}});
      }
  }
}

TEST_F(QuantizeKernels, NativeGemmsMatchReference) {
  Examiner examine(make_cuda_backend, {.threads = {2}});
  int native = 0;
  native_products(examine, 90, &native);
  EXPECT_TRUE(examine.findings().empty()) << examine.report();
  EXPECT_EQ(native, 8 * (4 + 3));  // per-tensor and per-row scales in any pair; 1 x 128 blocks with 1 x 128 or 128 x
                                   // 128 blocks
}

#ifdef ATHANOR_EMULATED_GPU
// Compute capability 8.9 supports FP8 GEMMs with per-tensor scales only, 8.0 none: the library would refuse them.
TEST_F(QuantizeKernels, OtherGpusEmulateUnsupportedGemms) {
  for (const auto& [gpu, capability, count] : {std::tuple{emu::gpu_rtx4090(), 89, 8}, {emu::gpu_a100(), 80, 0}}) {
    emu::simulate({gpu});
    Examiner examine(make_cuda_backend, {.threads = {2}, .every = 7});
    int native = 0;
    native_products(examine, capability, &native);
    EXPECT_TRUE(examine.findings().empty()) << examine.report();
    EXPECT_EQ(native, count);
  }
  emu::simulate({emu::gpu_h200()});
}

// One-byte scales per 32 or 16 elements, in tiles: more rows than one tile, and blocks that do not fill one.
void narrow_products(Examiner& examine, int capability, int* native) {
  constexpr int64_t m = 160, n = 32, k = 160;
  for (int flags = 0; flags < 16; ++flags) {
    const bool ta = flags & 1, tb = flags & 2, accumulate = flags & 4, four = flags & 8;
    const Shape a = ta ? Shape{k, m} : Shape{m, k}, b = tb ? Shape{n, k} : Shape{k, n};
    const int64_t terms = four ? 16 : 32;
    const Blocks of_a = ta ? Blocks{terms, 1} : Blocks{1, terms};
    const Blocks of_b = four ? Blocks{16, 16} : tb ? Blocks{1, terms} : Blocks{terms, 1};
    const DType quantized = four ? DType::f4_e2m1 : DType::f8_e4m3, scales = four ? DType::f8_e4m3 : DType::f8_e8m0;
    ScaledGemm op{.gemm = {.d = tensor(accumulate ? DType::f32 : DType::bf16, {m, n}),
                           .a = tensor(quantized, a),
                           .b = tensor(ta && !four ? DType::f8_e5m2 : quantized, b),
                           .ta = ta,
                           .tb = tb,
                           .accumulate = accumulate},
                  .a_scales = tensor(scales, of_a.grid(a)),
                  .b_scales = tensor(scales, of_b.grid(b)),
                  .a_blocks = of_a,
                  .b_blocks = of_b};
    if (four) op.a_global = tensor(DType::f32, {1}), op.b_global = tensor(DType::f32, {1});
    if (!accumulate && flags % 2) op.gemm.bias = tensor(DType::bf16, {n});
    if (!accumulate && flags % 4 == 2) op.gemm.epilogue = Epilogue::add, op.gemm.aux = op.gemm.d;
    *native += cuda::NativeGemm(op, capability).possible;
    const Init scale = four ? uniform(0.25, 2) : uniform(0.001, 0.01);
    examine(OpCase<ScaledGemm>{
        cat(four ? "4 bits" : "8 bits", ta ? " ta" : "", tb ? " tb" : "", accumulate ? " accumulate" : ""),
        op,
        {{"a_scales", scale}, {"b_scales", scale}, {"a_global", uniform(0.01, 0.02)}, {"b_global", uniform(0.5, 1)}}});
  }
}

TEST_F(QuantizeKernels, BlackwellRunsMxfp8AndNvfp4Natively) {
  emu::simulate({emu::gpu_b200()});
  Examiner examine(make_cuda_backend, {.threads = {2}});
  int native = 0;
  narrow_products(examine, 100, &native);
  EXPECT_EQ(native, 16);
  native_products(examine, 100, &native);
  EXPECT_EQ(native, 16 + 8);  // those with per-tensor scales
  EXPECT_TRUE(examine.findings().empty()) << examine.report();
  emu::simulate({emu::gpu_h200()});
  Examiner hopper(make_cuda_backend, {.threads = {2}, .every = 3});
  native = 0;
  narrow_products(hopper, 90, &native);
  EXPECT_EQ(native, 0);
  EXPECT_TRUE(hopper.findings().empty()) << hopper.report();
}

// Ops on one matrix, by the scales that they have: along rows and, transposed, along columns.
struct QuantizeOps {
  AccessBudget budget;
  Tensor x = budget.tensor(DType::bf16, {256, 512}), quantized = budget.tensor(DType::f8_e4m3, {256, 512}),
         transposed_quantized = budget.tensor(DType::f8_e4m3, {512, 256});
  Quantize alone(const Blocks& blocks) const {
    return {
        .quantized = quantized, .scales = budget.tensor(DType::f32, blocks.grid(x.shape)), .x = x, .blocks = blocks};
  }
  Quantize transposed(const Blocks& blocks) const {
    Quantize op = alone(blocks);
    op.transpose_only = true, op.quantized = transposed_quantized,
    op.scales = budget.tensor(DType::f32, op.scale_grid());
    return op;
  }
  Quantize both(const Blocks& blocks) const {
    Quantize op = alone(blocks);
    op.transposed = transposed_quantized;
    if (blocks != Blocks{}) op.transposed_scales = budget.tensor(DType::f32, blocks.grid(transposed_quantized.shape));
    return op;
  }
};

TEST(QuantizeKernelsBudget, AccessesAreCoalesced) {
  const QuantizeOps ops;
  const ScaledGemm product{
      .gemm = {.d = ops.budget.tensor(DType::f32, {512, 512}), .a = ops.quantized, .b = ops.quantized, .ta = true},
      .a_scales = ops.budget.tensor(DType::f32, {1, 1}),
      .b_scales = ops.budget.tensor(DType::f32, {1, 1})};
  EXPECT_EQ(ops.budget.check(ops.alone({}), ops.alone({1, 0}), ops.alone({1, 128}), ops.both({}), ops.both({1, 0}),
                             ops.both({1, 128}), ops.transposed({0, 1}), ops.transposed({128, 1}), product),
            "");
}

// Kernels read and write the bytes that cost() counts, except for intermediate amaxes.
TEST(QuantizeKernelsBudget, BytesMatchTheCostModel) {
  const QuantizeOps ops;
  for (const Quantize& op : {ops.alone({}), ops.alone({1, 0}), ops.alone({1, 128}), ops.both({}), ops.both({1, 0}),
                             ops.both({1, 128}), ops.transposed({0, 1}), ops.transposed({128, 1})}) {
    ops.budget.check(op);
    double bytes = 0;
    for (const auto& [name, counters] : emu::kernel_counters()) bytes += 32.0 * double(counters.global_sectors);
    EXPECT_NEAR(bytes / op.cost().bytes, 1, 0.15)
        << op.blocks.rows << "x" << op.blocks.cols << " " << bool(op.transposed);
  }
}

// Rows that exceed the shared memory of a block on this GPU, with and without column amaxes.
TEST_F(QuantizeKernels, RowsBeyondSharedMemoryMatchReference) {
  emu::simulate({emu::gpu_rtx4090()});  // 99 KiB
  Examiner examine(make_cuda_backend, {.threads = {2}});
  for (const int64_t columns : {16128, 20224, 30208})
    for (const bool both : {false, true}) {
      const Shape s{3, columns};
      Quantize op{.quantized = tensor(DType::f8_e4m3, s),
                  .scales = tensor(DType::f32, {3, 1}),
                  .x = tensor(DType::bf16, s),
                  .blocks = {1, 0}};
      if (both)
        op.transposed = tensor(DType::f8_e4m3, transposed_shape(s)),
        op.transposed_scales = tensor(DType::f32, {columns, 1});
      examine(OpCase<Quantize>{cat(columns, both ? " both" : ""), op, {}, true});
    }
  EXPECT_TRUE(examine.findings().empty()) << examine.report();
  emu::simulate({emu::gpu_h200()});
}
#endif
}  // namespace
}  // namespace athanor
