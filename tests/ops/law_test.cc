// Laws of single ops, by known values: they check the reference itself, and every other backend as well.
#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"
#include "tests/ops/backends.h"

namespace athanor {
namespace {

class Laws : public testing::TestWithParam<NamedBackend> {
 protected:
  using V = std::vector<float>;
  template <class Op>
  void run(const Op& op) {
    op.check();
    OnDevice<uint8_t> scratch(*b.device, std::vector<uint8_t>(b.ops->scratch(op) + 1));
    b.ops->run(op, scratch.t().data);
  }
  OnDevice<float> f32(const V& v) { return {*b.device, v}; }
  OnDevice<int32_t> i32(const std::vector<int32_t>& v) { return {*b.device, v}; }
  static Tensor as(const OnDevice<float>& x, Shape s) { return x.t().view(s); }
  static void expect_near(const V& got, const V& want) {
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 2e-6) << i;
  }
  TestBackend b = GetParam().make(2);
};
INSTANTIATE_TEST_SUITE_P(On, Laws, testing::ValuesIn(kBackends),
                         [](const auto& backend) { return std::string(backend.param.name); });

TEST_P(Laws, GemmMultipliesAddsBiasAndAccumulates) {
  const auto a = f32({1, 2, 3, 4, 5, 6}), w = f32({1, 0, -1, 2, 1, 0}), bias = f32({10, 20});
  auto d = f32({0, 0, 0, 0});
  Gemm op{.d = as(d, {2, 2}), .a = as(a, {2, 3}), .b = as(w, {2, 3}), .bias = bias.t(), .tb = true};
  run(op);
  EXPECT_EQ(d.read(), (V{8, 24, 8, 33}));
  op.bias = {};
  op.accumulate = true;
  run(op);
  EXPECT_EQ(d.read(), (V{6, 28, 6, 46}));
}

TEST_P(Laws, GemmEpiloguesMatchHandComputation) {
  const auto a = f32({1, 2, 3, 4, 5, 6}), w = f32({1, 0, -1, 2, 1, 0}), with = f32({1, 2, 3, 4});
  auto d = f32(V(4)), z = f32(V(4)), sums = f32({100, 200});
  Gemm op{.d = as(d, {2, 2}),
          .a = as(a, {2, 3}),
          .b = as(w, {2, 3}),
          .aux = as(with, {2, 2}),
          .epilogue = Epilogue::add,
          .tb = true};
  run(op);
  EXPECT_EQ(d.read(), (V{-2 + 1, 4 + 2, -2 + 3, 13 + 4}));
  op.epilogue = Epilogue::gelu;
  op.aux = as(z, {2, 2});
  run(op);
  EXPECT_EQ(z.read(), (V{-2, 4, -2, 13}));
  const V gelu = d.read();
  expect_near(gelu, {-0.04540231f, 3.9999297f, -0.04540231f, 13});
  d.write(V(4));
  op.recompute = true;
  run(op);
  EXPECT_EQ(d.read(), gelu);
  op.recompute = false;
  op.epilogue = Epilogue::gelu_gradient;
  z.write({0, 0, 20, -20});
  run(op);
  EXPECT_EQ(d.read(), (V{-1, 2, -2, 0}));
  auto gated = f32(V(2));
  op.epilogue = Epilogue::swiglu;
  op.aux = as(gated, {2, 1});
  run(op);
  EXPECT_EQ(d.read(), (V{-2, 4, -2, 13}));
  expect_near(gated.read(), {-2 * 4 * 0.11920292f, -2 * 13 * 0.11920292f});
  auto gate_up = f32({0, -2, 3, 4, 0, 20, 7, 5});
  op.epilogue = Epilogue::swiglu_gradient;  // the GEMM result z = {-2, 4, -2, 13} is dL/dy
  op.aux = as(gate_up, {2, 4});
  run(op);
  const float s = 0.11920292f;
  expect_near(d.read(), {0, -2 * 4 * s, 0, 100});
  expect_near(gate_up.read(), {-2 * 3 * 0.5f, 4 * 4 * s * (1 - 2 * (1 - s)), 0, 4 * -2 * s,  //
                               -2 * 7 * 0.5f, 13 * 5, 0, 13 * 20});
  op = {.d = as(d, {2, 2}),
        .a = as(a, {3, 2}),
        .b = as(w, {3, 2}),
        .aux = sums.t(),
        .epilogue = Epilogue::sum_a,
        .ta = true};
  run(op);
  EXPECT_EQ(sums.read(), (V{100 + 1 + 3 + 5, 200 + 2 + 4 + 6}));
  op.epilogue = Epilogue::sum_b;
  run(op);
  EXPECT_EQ(sums.read(), (V{109 + 1 - 1 + 1, 212 + 0 + 2 + 0}));
}

TEST_P(Laws, LayerNormCentersAndScales) {
  const auto x = f32({1, 2, 3, 4}), w = f32({1, 1, 1, 2}), bias = f32({0, 0, 5, 0});
  auto y = f32(V(4)), mean = f32(V(1)), rstd = f32(V(1));
  run(NormFwd{.kind = NormKind::layer,
              .y = as(y, {1, 4}),
              .mean = mean.t(),
              .rstd = rstd.t(),
              .h = as(x, {1, 4}),
              .w = w.t(),
              .b = bias.t(),
              .eps = 0});
  const float r = float(1 / std::sqrt(1.25));
  expect_near(mean.read(), {2.5f});
  expect_near(rstd.read(), {r});
  expect_near(y.read(), {-1.5f * r, -0.5f * r, 5 + 0.5f * r, 3 * r});
}

TEST_P(Laws, RmsNormScalesWithoutCentering) {
  const auto h = f32({3, 4}), w = f32({1, 10});
  auto y = f32(V(2)), rstd = f32(V(1));
  run(NormFwd{
      .kind = NormKind::rms, .y = as(y, {1, 2}), .rstd = rstd.t(), .h = as(h, {1, 2}), .w = w.t(), .eps = 3.5f});
  const float r = 0.25f;  // mean square 12.5, with eps 16
  expect_near(rstd.read(), {r});
  expect_near(y.read(), {3 * r, 40 * r});
}

TEST_P(Laws, QkNormDoesNotChangeV) {  // one query, one key, one value head of size 2
  const auto x = f32({3, 4, 6, 8, 7, 9}), wq = f32({1, 1}), wk = f32({1, -1});
  auto y = f32(V(6)), rstd = f32(V(2));
  run(QkNormFwd{.y = as(y, {1, 6}),
                .rstd = as(rstd, {1, 2}),
                .x = as(x, {1, 6}),
                .wq = wq.t(),
                .wk = wk.t(),
                .heads = 1,
                .kv_heads = 1,
                .eps = 0});
  const float r = float(1 / std::sqrt(12.5));
  expect_near(rstd.read(), {r, r / 2});
  expect_near(y.read(), {3 * r, 4 * r, 3 * r, -4 * r, 7, 9});
}

// Like the test above, but the rank has half of each head and receives the sums over whole heads.
TEST_P(Laws, QkNormOfHeadPartsMatchesWholeHeads) {
  const auto x = f32({3, 4, 6, 8, 7, 9}), dy = f32({1, 2, 1, -1, 5, 5}), wq = f32({1, 1}), wk = f32({1, -1});
  auto sums = f32(V(2)), rstd = f32(V(2)), y = f32(V(6)), dx = f32(V(6)), dwq = f32(V(2)), dwk = f32(V(2));
  const Shape row{1, 6}, of_heads{1, 2};
  QkNormSums part{
      .sums = as(sums, of_heads), .dy = {}, .x = as(x, row), .wq = wq.t(), .wk = wk.t(), .heads = 1, .kv_heads = 1};
  run(part);
  EXPECT_EQ(sums.read(), (V{25, 100}));
  part.dy = as(dy, row);
  run(part);
  EXPECT_EQ(sums.read(), (V{3 + 8, 6 + 8}));
  sums.write({100, 400});
  run(QkNormFwd{.y = as(y, row),
                .rstd = as(rstd, of_heads),
                .x = as(x, row),
                .wq = wq.t(),
                .wk = wk.t(),
                .heads = 1,
                .kv_heads = 1,
                .eps = 0,
                .sums = as(sums, of_heads),
                .parts = 2});
  expect_near(rstd.read(), {0.2f, 0.1f});
  expect_near(y.read(), {0.6f, 0.8f, 0.6f, -0.8f, 7, 9});
  sums.write({25, 200});  // mean(g n) is then 0.2 25 / 4, and 0.1 200 / 4
  run(QkNormBwd{.dx = as(dx, row),
                .dwq = dwq.t(),
                .dwk = dwk.t(),
                .dy = as(dy, row),
                .x = as(x, row),
                .rstd = as(rstd, of_heads),
                .wq = wq.t(),
                .wk = wk.t(),
                .heads = 1,
                .kv_heads = 1,
                .sums = as(sums, of_heads),
                .parts = 2});
  expect_near(dx.read(), {0.2f * (1 - 0.6f * 1.25f), 0.2f * (2 - 0.8f * 1.25f), 0.1f * (1 - 0.6f * 5),
                          0.1f * (1 - 0.8f * 5), 5, 5});
  expect_near(dwq.read(), {0.6f, 1.6f});
  expect_near(dwk.read(), {0.6f, -0.8f});
}

// Zero queries weight all visible keys equally: y is the mean of the visible values, lse the log of their number.
TEST_P(Laws, AttentionOfEqualScoresIsTheMean) {
  const auto q = f32(V(8)), k = f32({1, 2, 3, 4}), v = f32({1, 3, 8, 100});
  auto y = f32(V(8)), lse = f32(V(8));
  OnDevice<int32_t> spans = i32({0, 3, 0, 3, 0, 0, 3, 1, 3, 1, 0, 0});
  AttentionFwd op{.y = as(y, {4, 2}),
                  .lse = as(lse, {4, 2}),
                  .q = as(q, {4, 2}),
                  .k = as(k, {4, 1}),
                  .v = as(v, {4, 1}),
                  .spans = spans.t().view({2, 6}),
                  .shape = {.heads = 2, .kv_heads = 1, .head_dim = 1, .scale = 1}};
  run(op);
  const float l2 = std::log(2.0f), l3 = std::log(3.0f);
  expect_near(y.read(), {1, 1, 2, 2, 4, 4, 100, 100});
  expect_near(lse.read(), {0, 0, l2, l2, l3, l3, 0, 0});
  op.shape.window = 2;
  run(op);
  expect_near(y.read(), {1, 1, 2, 2, 5.5f, 5.5f, 100, 100});
}

TEST_P(Laws, AttentionWeightsAreExpOfScaledLogits) {
  const auto q = f32({9, 2}), k = f32({0, 3}), v = f32({10, 20});
  auto y = f32(V(2)), lse = f32(V(2));
  OnDevice<int32_t> spans = i32({0, 2, 0, 2, 0, 0});
  run(AttentionFwd{.y = as(y, {2, 1}),
                   .lse = as(lse, {2, 1}),
                   .q = as(q, {2, 1}),
                   .k = as(k, {2, 1}),
                   .v = as(v, {2, 1}),
                   .spans = spans.t().view({1, 6}),
                   .shape = {.heads = 1, .kv_heads = 1, .head_dim = 1, .scale = 0.5f}});
  const float e3 = std::exp(3.0f);
  expect_near(lse.read(), {0, std::log(1 + e3)});
  EXPECT_NEAR(y.read()[1], (10 + 20 * e3) / (1 + e3), 2e-5);
}

TEST_P(Laws, RopeRotatesPairsOfHalvesAndBack) {  // one head of size 4: pairs (0, 2) and (1, 3)
  auto x = f32({1, 2, 3, 4, 1, 2, 3, 4});
  const auto table = f32({1, 1, 0, 0, 0, 0.6f, 1, 0.8f});
  OnDevice<int32_t> positions = i32({1, 0});
  Rope op{.x = as(x, {2, 4}), .cos_sin = as(table, {2, 4}), .positions = positions.t(), .heads = 1, .head_dim = 4};
  run(op);
  expect_near(x.read(), {-3, 2 * 0.6f - 4 * 0.8f, 1, 4 * 0.6f + 2 * 0.8f, 1, 2, 3, 4});
  op.inverse = true;
  run(op);
  expect_near(x.read(), {1, 2, 3, 4, 1, 2, 3, 4});
}

TEST_P(Laws, ActivationsMatchKnownValues) {
  const auto x = f32({0, 1, -1, 3}), gu = f32({0, 1, -1, 3, 5, 2, 2, 10});
  auto y = f32(V(4));
  run(GeluFwd{.y = as(y, {1, 4}), .x = as(x, {1, 4})});
  expect_near(y.read(), {0, 0.841192f, -0.158808f, 2.996363f});
  run(SwigluFwd{.y = as(y, {1, 4}), .gu = as(gu, {1, 8})});
  expect_near(y.read(), {0, 2 * 0.7310586f, -2 * 0.2689414f, 30 * 0.9525741f});
}

TEST_P(Laws, CrossEntropyOfEqualLogitsIsTheLogOfTheVocabulary) {
  auto logits = f32({2, 2, 2, 2, 9, 1, 1, 1, 1, 9}), losses = f32({7, 7});
  const auto scale = f32({8});
  OnDevice<int32_t> targets = i32({1, -1});
  run(CrossEntropy{.logits = as(logits, {2, 5}),
                   .losses = losses.t(),
                   .targets = targets.t(),
                   .scale = scale.t(),
                   .inv_count = 0.5f,
                   .vocab = 4});
  expect_near(losses.read(), {std::log(4.0f), 0});
  expect_near(logits.read(), {1, -3, 1, 1, 0, 0, 0, 0, 0, 0});
}

TEST_P(Laws, EmbeddingsLookUpAddAndCollect) {
  const auto wte = f32({1, 2, 3, 4}), wpe = f32({10, 20, 30, 40}), dy = f32({1, 2, 3, 4, 5, 6});
  OnDevice<int32_t> tokens = i32({1, 0, 1}), positions = i32({0, 1, 1});
  auto y = f32(V(6)), dwte = f32({100, 0, 0, 0}), dwpe = f32(V(4));
  run(EmbeddingFwd{.y = as(y, {3, 2}),
                   .tokens = tokens.t(),
                   .positions = positions.t(),
                   .wte = as(wte, {2, 2}),
                   .wpe = as(wpe, {2, 2})});
  EXPECT_EQ(y.read(), (V{13, 24, 31, 42, 33, 44}));
  run(EmbeddingBwd{.dwte = as(dwte, {2, 2}),
                   .dwpe = as(dwpe, {2, 2}),
                   .dy = as(dy, {3, 2}),
                   .tokens = tokens.t(),
                   .positions = positions.t()});
  EXPECT_EQ(dwte.read(), (V{103, 4, 6, 8}));
  EXPECT_EQ(dwpe.read(), (V{1, 2, 8, 10}));
}

// The block with the amax gets the largest scale, here 448 / 448, so that the quantized values are the rounded inputs.
TEST_P(Laws, Nvfp4RoundsBlocksOf16) {
  const auto x = f32({0, 0.5f, -1, 1.5f, 2, 3, 4, -6, 0.25f, 0.75f, 1.25f, 1.75f, -2.5f, 3.5f, 5, 0.1f});
  OnDevice<f4_e2m1> quantized(*b.device, std::vector<f4_e2m1>(16));
  OnDevice<f8_e4m3> scale(*b.device, std::vector<f8_e4m3>(1));
  auto global = f32({0});
  OnDevice<double> statistics(*b.device, std::vector<double>{1, 0, 0, 2});
  run(Quantize{.quantized = quantized.t().view({1, 16}),
               .scales = scale.t().view({1, 1}),
               .global = global.t(),
               .x = as(x, {1, 16}),
               .blocks = {1, 16},
               .statistics = statistics.t()});
  EXPECT_EQ(global.read(), V{1.0f / 448});
  EXPECT_EQ(to_float(scale.read()[0]), 448);
  V values;
  for (const f4_e2m1 code : quantized.read()) values.push_back(to_float(code));
  EXPECT_EQ(values, (V{0, 0.5f, -1, 1.5f, 2, 3, 4, -6, 0, 1, 1, 2, -2, 4, 4, 0}));
  EXPECT_EQ(statistics.read(), (std::vector<double>{16, 0, 2, 6}));  // one was counted before
}

// Each factor of a^T b is transformed along the terms of the sum; the transforms cancel.
TEST_P(Laws, HadamardTransformsCancelInAGemm) {
  constexpr int64_t kTerms = 64, kColumns = 16;
  V a, w, exact(size_t(kColumns * kColumns));
  for (int64_t i = 0; i < kTerms * kColumns; ++i) {
    const auto at = [&](const char* name) { return random_normal(4, stream_of(name), uint64_t(i)); };
    a.push_back(at("a")), w.push_back(at("w"));
  }
  double power = 0;
  for (int64_t i = 0; i < kColumns; ++i)
    for (int64_t k = 0; k < kColumns; ++k) {
      float& sum = exact[size_t(i * kColumns + k)];
      for (int64_t t = 0; t < kTerms; ++t) sum += a[size_t(t * kColumns + i)] * w[size_t(t * kColumns + k)];
      power += double(sum) * double(sum);
    }
  const auto error = [&](bool hadamard) {
    const auto x = f32(a), y = f32(w);
    OnDevice<f4_e2m1> xc(*b.device, std::vector<f4_e2m1>(a.size())), yc(*b.device, std::vector<f4_e2m1>(a.size()));
    OnDevice<f8_e4m3> xs(*b.device, std::vector<f8_e4m3>(a.size() / 16)),
        ys(*b.device, std::vector<f8_e4m3>(a.size() / 16));
    auto xg = f32({0}), yg = f32({0}), d = f32(V(exact.size()));
    const Shape matrix{kTerms, kColumns}, grid{kTerms / 16, kColumns};
    const auto quantize = [&](const auto& quantized, const auto& scales, const auto& global, const auto& from) {
      run(Quantize{.quantized = quantized.t().view(matrix),
                   .scales = scales.t().view(grid),
                   .global = global.t(),
                   .x = as(from, matrix),
                   .blocks = {16, 1},
                   .hadamard = hadamard});
    };
    quantize(xc, xs, xg, x), quantize(yc, ys, yg, y);
    run(ScaledGemm{
        .gemm = {.d = as(d, {kColumns, kColumns}), .a = xc.t().view(matrix), .b = yc.t().view(matrix), .ta = true},
        .a_scales = xs.t().view(grid),
        .b_scales = ys.t().view(grid),
        .a_global = xg.t(),
        .b_global = yg.t(),
        .a_blocks = {16, 1},
        .b_blocks = {16, 1}});
    const V got = d.read();
    double sum = 0;
    for (size_t i = 0; i < got.size(); ++i) sum += std::pow(double(got[i]) - double(exact[i]), 2);
    return sum / power;
  };
  EXPECT_LT(error(false), 0.05);
  EXPECT_LT(error(true), 0.05);
}

}  // namespace
}  // namespace athanor
