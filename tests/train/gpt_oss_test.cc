// Biases of experts and of their router on ranks: with every mesh axis that a mixture has, GPT-OSS matches one rank.
#include <gtest/gtest.h>

#include "tests/train/watched_group.h"

namespace athanor::ranks {
namespace {
using G = Recompute::Granularity;

Setting gpt_oss() { return {.type = ModelType::gpt_oss, .sequences = 90, .window = 4, .balance = 1}; }

TEST(GptOss, MatchesOneRank) {
  const Curve want = train(gpt_oss());
  Setting tensor = gpt_oss(), experts = gpt_oss(), both = gpt_oss(), shards = gpt_oss(), accumulated = gpt_oss();
  tensor.tensor = 2, tensor.sequence = true, tensor.recompute = G::selective;
  experts.shards = experts.experts = 5, experts.stage = 1;
  both.tensor = 2, both.sequence = true, both.shards = both.experts = 5;
  shards.shards = 3, shards.stage = 3, shards.recompute = G::full;
  accumulated.accumulation = 2, accumulated.shards = 3, accumulated.stage = 2;
  for (const Setting& s : {tensor, experts, both, shards, accumulated}) expect_same(want, train(s), 1e-5, s.name());
}

// Biases are updated by AdamW, as vectors.
TEST(GptOss, MuonMatchesOneRank) {
  Setting s = gpt_oss();
  s.rule = RuleName::muon, s.lr = 1e-3;
  const Curve want = train(s);
  s.shards = s.experts = 5;
  expect_same(want, train(s), 2e-5, s.name());
}

TEST(GptOss, CapacityMatchesOneRank) {
  Setting s = gpt_oss();
  s.capacity = 1.2;
  const Curve want = train(s);
  s.shards = s.experts = 5;
  expect_same(want, train(s), 1e-5, s.name());
}

}  // namespace
}  // namespace athanor::ranks
