// Operation counts against published figures and against counting pairs one by one.
#include "perf/flops.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ops/attention.h"

namespace athanor {
namespace {

// Keys visible per query, counted: the formulas omit half of the diagonal, 1/(2T) of the total.
TEST(Flops, WindowsMatchCountedPairs) {
  for (int64_t t : {64, 1024})
    for (int64_t w : {int64_t(1), int64_t(16), t / 2, t, 2 * t, int64_t(0)}) {
      int64_t pairs = 0;
      for (int64_t query = 0; query < t; ++query) pairs += w > 0 ? std::min(query + 1, w) : query + 1;
      const FlopCount one =
          attention_training_flops_per_token({.heads = 1, .head_dim = 1, .seq_length = t, .window = w});
      EXPECT_NEAR(one.causal, 12.0 * double(pairs) / double(t), 12 * 0.5) << "T " << t << " W " << w;
      EXPECT_DOUBLE_EQ(one.full, 12.0 * double(w > 0 && w < t ? w : t));
    }
}

TEST(Flops, SparsePatternsMatchCountedPairs) {
  for (const int64_t t : {64, 1000})
    for (const auto& [group, summary] : {SparsePattern{16, 4}, {7, 0}, {48, 47}, {1, 0}, {2000, 5}}) {
      int64_t pairs = 0;
      for (int64_t q = 0; q < t; ++q)
        for (int64_t k = 0; k <= q; ++k) pairs += k / group == q / group || k % group >= group - summary;
      const FlopCount one =
          attention_training_flops_per_token({.heads = 1, .head_dim = 1, .seq_length = t, .sparse = {group, summary}});
      EXPECT_DOUBLE_EQ(one.causal, 12 * (double(pairs) / double(t) - 0.5)) << "T " << t << " group " << group;
      EXPECT_DOUBLE_EQ(one.full, 2 * one.causal);
    }
}

// Limits of launches and MFU must count the same pairs: 4 of the 12 operations are those of the forward launch, and 10,
// with the recomputed scores, those of the backward launch.
TEST(Flops, AttentionLaunchesCostWhatTheLayerCounts) {
  constexpr int64_t kTokens = 256, kHeads = 2, kDim = 8, kSequences = 3;
  struct Mask {
    int64_t window = 0;
    SparsePattern sparse = {};
  };
  const Tensor x{nullptr, DType::bf16, {kSequences * kTokens, kHeads * kDim}};
  const Tensor spans{nullptr, DType::i32, {kSequences, kSpanWords}};
  for (const Mask& mask : {Mask{}, Mask{.window = 1}, Mask{.window = 64}, Mask{.window = kTokens},
                           Mask{.window = 5 * kTokens}, Mask{.sparse = {.group = 32, .summary = 4}}}) {
    const AttentionShape shape{
        .heads = kHeads, .kv_heads = kHeads, .head_dim = kDim, .window = mask.window, .sparse = mask.sparse};
    const double counted =
        attention_training_flops_per_token(
            {.heads = kHeads, .head_dim = kDim, .seq_length = kTokens, .window = mask.window, .sparse = mask.sparse})
            .causal *
        kSequences * kTokens;
    AttentionFwd forward{.shape = shape};
    AttentionBwd backward{.shape = shape};
    forward.q = forward.k = forward.v = backward.q = backward.k = backward.v = x;
    forward.spans = backward.spans = spans;
    EXPECT_NEAR(forward.cost().flops / counted, 4. / 12, 1e-12) << "a window of " << mask.window;
    EXPECT_NEAR(backward.cost().flops / counted, 10. / 12, 1e-12) << "a window of " << mask.window;
    forward.spans.shape = backward.spans.shape = {10 * kSequences, kSpanWords};  // a table with room for documents
    forward.sequences = backward.sequences = kSequences;
    EXPECT_NEAR(forward.cost().flops / counted, 4. / 12, 1e-12) << "documents";
    EXPECT_NEAR(backward.cost().flops / counted, 10. / 12, 1e-12) << "documents";
    forward.seen = 1;  // ring attention: keys of earlier tokens
    EXPECT_LE(forward.cost().flops,
              4. * double(x.numel() * std::min(kTokens, mask.window > 0 ? mask.window : kTokens)));
  }
}

TEST(Flops, ValueHeadsCountWithTheirOwnWidth) {
  const AttentionSize size{.heads = 2, .head_dim = 5, .value_dim = 3, .seq_length = 10};
  EXPECT_DOUBLE_EQ(attention_training_flops_per_token(size).full, 6. * 2 * (5 + 3) * 10);
}

TEST(Flops, WindowOfTheSequenceLengthChangesNothing) {
  AttentionSize size{.heads = 12, .head_dim = 64, .seq_length = 1024};
  const double all = attention_training_flops_per_token(size).causal;
  for (int64_t window : {1024, 5000}) {
    size.window = window;
    EXPECT_DOUBLE_EQ(attention_training_flops_per_token(size).causal, all);
  }
  size.window = 1023;
  EXPECT_LT(attention_training_flops_per_token(size).causal, all);
}

TEST(Flops, HugeModelsDoNotOverflow) {
  const FlopCount count =
      attention_training_flops_per_token({.heads = 1 << 30, .head_dim = 1 << 30, .seq_length = int64_t(1) << 40});
  EXPECT_TRUE(std::isfinite(count.full));
  EXPECT_GT(count.full, 0);
}

TEST(Flops, EmptySequenceHasNoAttentionFlops) {
  EXPECT_EQ(attention_training_flops_per_token({.heads = 1, .head_dim = 1}).full, 0);
}

TEST(Flops, UtilizationIsPerDevice) {
  const FlopCount count{.causal = 1e9, .full = 2e9};
  const auto u = utilization(count, {.tokens_per_second = 1e5, .devices = 8, .peak_flops = 1e14});
  EXPECT_DOUBLE_EQ(u.tflops, 12.5);
  EXPECT_DOUBLE_EQ(u.mfu, 0.125);
  EXPECT_DOUBLE_EQ(u.mfu_full, 0.25);
}

TEST(Flops, UtilizationIsUnknownWithoutAPeak) {
  const auto u = utilization({.causal = 1e9, .full = 2e9}, {.tokens_per_second = 1e3});
  EXPECT_DOUBLE_EQ(u.tflops, 1);
  EXPECT_TRUE(std::isnan(u.mfu));
  EXPECT_TRUE(std::isnan(u.mfu_full));
}

}  // namespace
}  // namespace athanor
