// Tensor-parallel ranks of OLMoE, which normalizes all heads of Q as one and all heads of K as one, sum over all heads:
// they match one rank, which also resumes their checkpoints; a missing sum is detected.
#include <gtest/gtest.h>

#include "tests/train/watched_group.h"

namespace athanor::ranks {
namespace {
using G = Recompute::Granularity;

constexpr int64_t kTokens = 8;  // per sequence, which ranks with shares of rows divide

Setting olmoe(int tensor) {
  return {.type = ModelType::olmoe, .sequences = 90, .tensor = tensor, .sequence = tensor > 1, .length = kTokens};
}

TEST(NormOfAllHeads, MatchesOneRank) {
  const Curve want = train(olmoe(1));
  for (const int tensor : {2, 4}) expect_same(want, train(olmoe(tensor)), 1e-5, cat(tensor, " ranks"));
  for (const auto& [shards, stage, recompute] :
       {std::tuple{2, 0, G::selective}, {2, 1, G::none}, {2, 2, G::full}, {3, 3, G::selective}}) {
    Setting s = olmoe(2);
    s.shards = shards, s.stage = stage, s.recompute = recompute;
    expect_same(want, train(s), 1e-5, s.name());
  }
}

TEST(NormOfAllHeads, MatchesOneRankWithOtherParallelAxes) {
  const Curve want = train(olmoe(1));
  Setting experts = olmoe(2), pieces = olmoe(2), gathered = olmoe(2), ring = olmoe(2);
  experts.shards = experts.experts = 5, experts.stage = 1;
  pieces.beside = pieces.pieces = true;
  gathered.context = 2;
  ring.context = 2, ring.ring = true;
  for (const Setting& s : {experts, pieces, gathered, ring}) expect_same(want, train(s), 1e-5, s.name());
}

TEST(NormOfAllHeads, EveryPrecisionMatchesOneRank) {
  for (const auto& [precision, master] : {std::pair{"bf16", DType::i16}, {"fp16", DType::f32}}) {
    Setting s = olmoe(1);
    s.precision = precision, s.master = master;
    const Curve want = train(s);
    s.tensor = 2, s.sequence = true;
    const Curve got = train(s);
    for (size_t i = 0; i < want.losses.size(); ++i)
      EXPECT_NEAR(got.losses[i], want.losses[i], 5e-3 * want.losses[i]) << s.name();
  }
}

TEST(NormOfAllHeads, RecomputationAndRepetitionAreBitExact) {
  Setting s = olmoe(2);
  s.shards = 2, s.stage = 3;
  expect_repetition_and_recomputation_change_no_bit(s);
}

TEST(NormOfAllHeads, CheckpointsAreIndependentOfGroups) {
  const testing::TempDir dir;
  const auto run = [&](int tensor, const std::string& from, int64_t begin, int64_t end, const std::string& to) {
    return run_part(olmoe(tensor), from.empty() ? "" : cat(dir / from, "/", step_folder(begin)), begin, end, dir / to);
  };
  const auto whole = run(1, "", 0, 4, "whole");
  for (const auto& [first, then] : {std::pair{2, 1}, {1, 4}, {4, 2}}) {
    const std::string half = cat("half", first, then), rest = cat("rest", first, then), copy = cat("copy", first, then);
    run(first, "", 0, 2, half);
    const auto losses = run(then, half, 2, 4, rest);
    for (size_t i = 0; i < 2; ++i)
      EXPECT_NEAR(losses[i], whole[i + 2], 1e-5 * whole[i + 2]) << first << " then " << then;
    run(then, half, 2, 2, copy);
    EXPECT_EQ(tensors_of(cat(dir / half, "/", step_folder(2))), tensors_of(cat(dir / copy, "/", step_folder(2))));
  }
}

// The sums of each block's norms in forward and in backward, and those of the classifier.
TEST(NormOfAllHeads, MissingSumsAreDetected) {
  const Setting s = olmoe(2);
  const Curve want = train(olmoe(1));
  const WatchedCurve right = train_watched(s, {}, 3);
  EXPECT_FALSE(differs(want, right.losses, right.norms));
  EXPECT_EQ(right.sent.calls, 2 * kLayers + 2);
  EXPECT_EQ(right.planned.all().calls, right.sent.calls);
  EXPECT_EQ(right.planned.all().bytes, right.sent.bytes);
  int64_t sums = 0;
  for (int64_t at = 0; at < right.sent.calls + right.sent.row_calls; ++at) {
    const bool is_sum = train_watched(s, {.fault = Watch::Fault::averaged, .at = at}, 1).wrong > 0;  // or a gather
    if (!is_sum) continue;
    ++sums;
    const WatchedCurve missing = train_watched(s, {.fault = Watch::Fault::missing, .at = at}, 3);
    EXPECT_TRUE(differs(want, missing.losses, missing.norms)) << "call " << at;
  }
  EXPECT_EQ(sums, right.sent.calls);
}

}  // namespace
}  // namespace athanor::ranks
