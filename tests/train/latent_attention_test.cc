// Tensor-parallel ranks of multi-head latent attention have parts of the heads and whole latent vectors: with every
// other mesh axis they match one rank, which also resumes their checkpoints; a missing sum is detected.
#include <gtest/gtest.h>

#include "tests/train/watched_group.h"

namespace athanor::ranks {
namespace {
using G = Recompute::Granularity;

Setting latent(int tensor) {
  return {.type = ModelType::deepseek_v3,
          .sequences = 90,
          .tensor = tensor,
          .sequence = tensor > 1,
          .length = 8,
          .balance = 1};
}

TEST(LatentAttention, MatchesOneRank) {
  const Curve want = train(latent(1));
  Setting sequence = latent(2), shards = latent(2), accumulated = latent(1), four = latent(4);
  shards.shards = 3, shards.stage = 3, shards.recompute = G::full;
  sequence.recompute = G::selective, sequence.pieces = sequence.beside = true;
  accumulated.accumulation = 2, accumulated.shards = 3, accumulated.stage = 2;
  Setting experts = latent(2), gathered = latent(2), ring = latent(2);
  experts.shards = experts.experts = 3, experts.stage = 1;
  gathered.context = 2;
  ring.context = 2, ring.ring = true;
  for (const Setting& s : {sequence, shards, accumulated, four, experts, gathered, ring})
    expect_same(want, train(s), 1e-5, s.name());
}

TEST(LatentAttention, MuonMatchesOneRank) {
  Setting s = latent(1);
  s.rule = RuleName::muon, s.lr = 1e-3;
  const Curve want = train(s);
  s.tensor = 2, s.sequence = true, s.shards = 3, s.stage = 1;
  expect_same(want, train(s), 2e-5, s.name());
}

TEST(LatentAttention, CheckpointsAreIndependentOfGroups) {
  const testing::TempDir dir;
  const auto run = [&](int tensor, const std::string& from, int64_t begin, int64_t end, const std::string& to) {
    return run_part(latent(tensor), from.empty() ? "" : cat(dir / from, "/", step_folder(begin)), begin, end, dir / to);
  };
  const auto whole = run(1, "", 0, 4, "whole");
  run(2, "", 0, 2, "half");
  const auto losses = run(1, "half", 2, 4, "rest");
  for (size_t i = 0; i < 2; ++i) EXPECT_NEAR(losses[i], whole[i + 2], 1e-5 * whole[i + 2]);
  run(4, "half", 2, 2, "copy");
  EXPECT_EQ(tensors_of(cat(dir / "half", "/", step_folder(2))), tensors_of(cat(dir / "copy", "/", step_folder(2))));
}

// Among the collectives are the all-gather of the key channels that all heads share, and the sum of their gradient. Two
// do not affect the weights: the router's logits and weight gradients of other ranks' rows.
TEST(LatentAttention, MissingGathersAndSumsAreDetected) {
  const Setting s = latent(2);
  const Curve want = train(latent(1));
  const WatchedCurve right = train_watched(s, {}, 3);
  EXPECT_FALSE(differs(want, right.losses, right.norms));
  EXPECT_EQ(right.planned.all().bytes, right.sent.bytes);
  EXPECT_EQ(right.planned.all().row_bytes, right.sent.row_bytes);
  EXPECT_EQ(right.planned.by_subject.at("model.layers.0.self_attn.kv_a_proj_with_mqa").row_calls, 2);
  int64_t unnoticed = 0;
  for (int64_t at = 0; at < right.sent.calls + right.sent.row_calls; ++at) {
    const WatchedCurve missing = train_watched(s, {.fault = Watch::Fault::missing, .at = at}, 3);
    unnoticed += !differs(want, missing.losses, missing.norms);
  }
  EXPECT_EQ(unnoticed, 2);
}

}  // namespace
}  // namespace athanor::ranks
