// The model of the limit: no launch beats either rate, tiles round GEMMs up, rows add up and are ordered by loss.
#include "perf/roofline.h"

#include <gtest/gtest.h>

#include <cmath>

#include "perf/described_gpu.h"

namespace athanor {
namespace {

Launch product(int64_t m, int64_t n, int64_t k) {
  return {.op = Gemm::kName,
          .cost = {2.0 * double(m) * double(n) * double(k), 2.0 * double(m * n + m * k + n * k)},
          .shape = {m, n},
          .inner = k};
}

TEST(Limit, IsTheMaximumOfComputeAndMemoryTime) {
  const Roofline limits{.most = {.flops = 100, .bytes = 10}};
  const Launch computes{.op = "x", .cost = {1000, 1}, .shape = {1}}, copies{.op = "x", .cost = {1, 1000}, .shape = {1}};
  EXPECT_DOUBLE_EQ(least_seconds(computes, limits), 10);
  EXPECT_DOUBLE_EQ(least_seconds(copies, limits), 100);
}

TEST(Limit, TilesNeverMakeAGemmFasterThanItsRoofline) {
  const Roofline tiled = limits_of(find_gpu("h200"), 64, 1024), plain{.most = tiled.most};
  for (const Launch& p : {product(8192, 8192, 8192), product(65536, 768, 768), product(768, 768, 65536),
                          product(65536, 50304, 768), product(1, 1, 1)})
    EXPECT_GE(least_seconds(p, tiled), least_seconds(p, plain)) << row_name(p, true);
  EXPECT_DOUBLE_EQ(least_seconds(product(8192, 8192, 8192), tiled), 2 * std::pow(8192.0, 3) / tiled.most.flops);
  // 133 tiles on 132 multiprocessors take two waves, unless split into smaller tiles.
  EXPECT_GT(least_seconds(product(133 * 128, 256, 4096), tiled),
            1.1 * least_seconds(product(132 * 128, 256, 4096), tiled));
}

// GELU's 2 bytes more for each result, at the end of a tile: as 64 more of K.
TEST(Limit, EpilogueTrafficIsCounted) {
  const Roofline limits = limits_of(find_gpu("h200"), 64, 1024);
  const DescribedBackend gpu = describe(find_gpu("h200"));
  constexpr int64_t kRows = 131072, kColumns = 3072, kTerms = 768;
  const auto tensor = [](int64_t rows, int64_t cols) { return Tensor{nullptr, DType::bf16, {rows, cols}}; };
  Gemm op{.d = tensor(kRows, kColumns), .a = tensor(kRows, kTerms), .b = tensor(kColumns, kTerms), .tb = true};
  const double alone = least_seconds(launch_of(op, *gpu.ops), limits);
  op.epilogue = Epilogue::gelu, op.aux = tensor(kRows, kColumns);
  EXPECT_NEAR(least_seconds(launch_of(op, *gpu.ops), limits) / alone, (kTerms + 192 + 64) / (kTerms + 192.), 1e-9);
  op.recompute = true;
  EXPECT_EQ(op.epilogue_bytes(), 0);
}

// Quantized values use the 8-bit rate, dequantized ones run without tensor cores; the traffic around a GEMM is added.
TEST(Limit, ScaledGemmsHaveTheirOwnRates) {
  const Roofline limits = limits_of(find_gpu("h200"), 64, 1024);
  Launch p = product(8192, 8192, 8192);
  const double matrices = least_seconds(p, limits);
  p.factors = Factors::quantized;
  const double quantized = least_seconds(p, limits);
  EXPECT_NEAR(matrices / quantized, 1979 / 989.4, 1e-9);
  EXPECT_NEAR(p.cost.flops / quantized, 1979e12 * 795 / 989.4, 1e9) << "derated as bf16 is";
  p.moved = 4.3e9;
  EXPECT_NEAR(least_seconds(p, limits) - quantized, 1e-3, 1e-12);
  p.moved = 0, p.factors = Factors::floats;
  EXPECT_NEAR(least_seconds(p, limits) / matrices, 989.4 / 67, 1e-9);
  EXPECT_DOUBLE_EQ(least_seconds(p, {.most = limits.most}), least_seconds(p, {.most = {limits.most.floats, 4.3e12}}));
  EXPECT_DOUBLE_EQ(least_seconds(p, {.most = {1e12, 1e12}}), p.cost.flops / 1e12)
      << "no rate of their own: as matrices";
  const Launch little = product(8192, 8192, 256);  // filling the pipeline takes the same time at any rate
  Launch little_codes = little;
  little_codes.factors = Factors::quantized;
  EXPECT_LT(least_seconds(little, limits) / least_seconds(little_codes, limits), 1.6);
}

// By data sheets, of which an H100 is assumed to sustain 80 %: 989.4, 494.7 and 67 TFLOP/s.
TEST(Limit, GemmsRunAtTheRateOfThePrecision) {
  const GpuSpec& gpu = find_gpu("h100");
  for (const auto& [precision, rate] : {std::pair{"bf16", 989.4e12},
                                        {"fp16", 989.4e12},
                                        {"tf32", 494.7e12},
                                        {"fp32", 67e12},
                                        {"fp8_tensorwise", 989.4e12}}) {
    const Roofline limits = limits_of(gpu, 128, 4096, make_recipe(precision, DType::f32));
    EXPECT_NEAR(limits.most.flops / rate, 0.8, 1e-9) << precision;
    EXPECT_LE(limits.attention_forward, limits.most.flops) << precision;
    EXPECT_LE(limits.attention_backward, limits.most.flops) << precision;
    const double least = least_seconds(product(8192, 8192, 8192), limits);
    EXPECT_NEAR(least, 2 * std::pow(8192.0, 3) / limits.most.flops, 1e-9 * least) << precision;
  }
}

TEST(Limit, AttentionHasItsOwnRate) {
  const Roofline limits = limits_of(find_gpu("h200"), 128, 4096);
  const Launch forward{.op = AttentionFwd::kName, .cost = {1e12, 1}, .shape = {1, 1}};
  const Launch backward{.op = AttentionBwd::kName, .cost = {1e12, 1}, .shape = {1, 1}};
  EXPECT_NEAR(least_seconds(forward, limits), 1 / 591.0, 1e-9);
  EXPECT_NEAR(least_seconds(backward, limits), 1 / 474.0, 1e-9);
  const double between = least_seconds(forward, limits_of(find_gpu("h200"), 128, 3072));
  EXPECT_GT(between, 1 / 591.0);
  EXPECT_LT(between, 1 / 484.0);
}

TEST(Limit, RowsAreSummedAndSortedByLostTime) {
  const Roofline limits{.most = {.flops = 1, .bytes = 1}};
  const Launch launch{.op = "x", .cost = {3, 1}, .shape = {2, 5}};
  std::map<std::string, OpRow> rows;
  for (int i = 0; i < 2; ++i) rows["near"].add(launch, limits);
  rows["far"].add(launch, limits);
  rows["near"].seconds = 7;
  rows["far"].seconds = 5;
  EXPECT_EQ(least_sum(rows), 9);
  EXPECT_EQ(measured_sum(rows), 12);
  EXPECT_EQ(ordered(rows).front().first, "far");
  EXPECT_EQ(row_name(launch, false), "x");
  EXPECT_EQ(row_name(launch, true), "x 2x5");
  EXPECT_EQ(row_name(product(2, 3, 4), true), "gemm 2x3x4");
  const std::string table = op_table(rows, 1, 15);
  EXPECT_NE(table.find("80.0 % of the step's 15000 ms\nbetween ops: 3000 ms"), std::string::npos) << table;
}

TEST(DescribedGpu, UnknownNamesAreRefusedAndNoKernelRuns) {
  EXPECT_THROW(find_gpu("h300"), Error);
  const DescribedBackend gpu = describe(find_gpu("h200"));
  EXPECT_FALSE(gpu.device->unified());
  EXPECT_GT(gpu.device->capacity(Mem::device), size_t{100} << 30);
  EXPECT_THROW(gpu.device->allocate(1, Mem::device), Error);
  EXPECT_THROW(gpu.ops->run(Fill{}, nullptr), Error);
}

// Its attention rates are those of cuDNN, which does not rotate gradients back, so that plans count a separate pass.
TEST(DescribedGpu, RopeIsFusedInForwardOnly) {
  const DescribedBackend gpu = describe(find_gpu("h200"));
  constexpr int64_t kRows = 128, kDim = 64;
  const auto tensor = [](DType dtype, int64_t rows, int64_t columns) -> Tensor {
    return {nullptr, dtype, {rows, columns}};
  };
  const Tensor cos_sin = tensor(DType::f32, kRows, kDim), positions{nullptr, DType::i32, {kRows}};
  EXPECT_TRUE(gpu.ops->fuses(Gemm{.d = tensor(DType::bf16, kRows, 3 * kDim),
                                  .a = tensor(DType::bf16, kRows, 256),
                                  .b = tensor(DType::bf16, 3 * kDim, 256),
                                  .aux = cos_sin,
                                  .positions = positions,
                                  .rotated = 2 * kDim,
                                  .epilogue = Epilogue::rope,
                                  .tb = true}));
  const Tensor of_heads = tensor(DType::bf16, kRows, kDim);
  AttentionBwd backward{
      .shape = {.heads = 1, .kv_heads = 1, .head_dim = kDim}, .cos_sin = cos_sin, .positions = positions};
  for (Tensor* t :
       {&backward.dq, &backward.dk, &backward.dv, &backward.dy, &backward.y, &backward.q, &backward.k, &backward.v})
    *t = of_heads;
  EXPECT_FALSE(gpu.ops->fuses(backward));
}

}  // namespace
}  // namespace athanor
