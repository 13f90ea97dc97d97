// Stochastic depth and dropout of elements: gradients are those of the loss whose branches are left out, and ranks,
// micro-batches and recomputation change nothing.
#include <gtest/gtest.h>

#include <optional>
#include <set>

#include "tests/adapters/one_batch.h"
#include "tests/train/ranks_rig.h"
#include "tests/train/watched_group.h"

namespace athanor {
namespace {

using G = Recompute::Granularity;
using ranks::Curve;
using ranks::Setting;

TEST(StochasticDepth, MatchesOneRank) {
  for (const ModelType type : {ModelType::gpt2, ModelType::llama, ModelType::athanor}) {
    const Setting base{.type = type, .kv_heads = type == ModelType::gpt2 ? 0 : 4, .depth = 0.6};
    Setting micro = base, shards = base, tensor = base, pieces = base, gather = base;
    micro.accumulation = 4, micro.recompute = G::selective;
    shards.shards = 3, shards.stage = 3, shards.accumulation = 2, shards.recompute = G::full;
    tensor.tensor = 2, tensor.sequence = true, tensor.accumulation = 2;
    pieces = tensor, pieces.pieces = true, pieces.shards = 2, pieces.stage = 2;
    gather.context = 2, gather.length = 16, gather.documents = true;
    Setting ring = gather;
    ring.ring = true, ring.shards = 2, ring.stage = 1, ring.accumulation = 2;
    for (const Setting& s : {micro, shards, tensor, pieces, gather, ring}) {
      Setting whole = alone(s);
      whole.accumulation = 1, whole.recompute = G::none, whole.depth = s.depth;
      expect_same_curve(train(whole, 3), train(s, 3), 1e-5, s.name());
    }
    Setting never = base;
    never.depth = 0;
    EXPECT_NE(train(never, 1).losses, train(base, 1).losses);
  }
}

TEST(HiddenDropout, MatchesOneRank) {
  for (const ModelType type : {ModelType::gpt2, ModelType::llama, ModelType::athanor})
    for (const double depth : {0.0, 0.3}) {
      const Setting base{
          .type = type, .kv_heads = type == ModelType::gpt2 ? 0 : 4, .depth = depth, .hidden_dropout = 0.2};
      Setting micro = base, shards = base, tensor = base;
      micro.accumulation = 4, micro.recompute = G::selective;
      shards.shards = 3, shards.stage = 3, shards.accumulation = 2, shards.recompute = G::full;
      tensor.tensor = 2, tensor.accumulation = 2;
      Setting sequence = tensor;
      sequence.sequence = true, sequence.pieces = true;
      const Curve want = train(base, 3);
      for (const Setting& s : {micro, shards, tensor, sequence}) expect_same_curve(want, train(s, 3), 1e-5, s.name());
      Setting never = base;
      never.hidden_dropout = 0;
      EXPECT_NE(train(never, 1).losses, train(base, 1).losses);
    }
}

struct Drops {
  StochasticDepth depth = {};
  float hidden = 0;
};

EngineOptions dropped(const Drops& drops, G recompute) {
  EngineOptions o = options_of(recompute, {});
  o.micro_batch_size = o.global_batch_size = 2;
  o.depth = drops.depth, o.hidden_dropout = drops.hidden;
  return o;
}

// Like OneBatch, for a model that is fully trained.
struct DroppedBatch : OneBatch {
  explicit DroppedBatch(ModelType type, const Drops& drops, G recompute = G::none)
      : OneBatch(type, dropped(drops, recompute)) {}
};

void gradients_are_those_of_the_dropped_loss(const Drops& half) {
  for (const ModelType type : {ModelType::llama, ModelType::gpt2, ModelType::athanor}) {
    std::optional<double> loss;
    for (const auto recompute : {G::none, G::full}) {
      DroppedBatch at(type, half, recompute), ahead(type, half, recompute), behind(type, half, recompute);
      const double before = at.run();
      EXPECT_EQ(loss.value_or(before), before) << "with every recomputation";
      loss = before;
      constexpr float kStep = 1e-4f;  // norms of small outputs bend the loss
      double squares = 0;
      for (const ParamStore::Piece& p : at.engine.model().params().pieces()) {
        const Values g = at.gradient(p.slice->name);
        Values more = ahead.value(p.slice->name), less = more;
        for (size_t i = 0; i < g.size(); ++i) {
          more[i] += kStep * g[i], less[i] -= kStep * g[i];
          squares += double(g[i]) * g[i];
        }
        ahead.set(p.slice->name, more), behind.set(p.slice->name, less);
      }
      const double change = (ahead.run() - behind.run()) / 32;  // tokens
      EXPECT_NEAR(change / (2 * kStep * squares), 1, 0.02) << name_of(type);
    }
  }
}

TEST(StochasticDepth, GradientsMatchFiniteDifferencesUnderTheSameMask) {
  gradients_are_those_of_the_dropped_loss({.depth = {.rate = 0.5f, .mode = StochasticDepthMode::uniform}});
}

TEST(HiddenDropout, GradientsMatchFiniteDifferencesUnderTheSameMask) {
  gradients_are_those_of_the_dropped_loss({.hidden = 0.3f});
}

void is_of_training_alone_and_other_in_every_step(const Drops& drops) {
  DroppedBatch whole(ModelType::llama, {}), at(ModelType::llama, drops);
  const std::vector<int32_t> tokens(32, 3), targets(32, 4);
  EXPECT_EQ(whole.engine.evaluate(tokens, targets), at.engine.evaluate(tokens, targets));
  std::set<double> losses;
  for (int step = 0; step < 8; ++step) {
    losses.insert(at.run());
    at.engine.finish_step();  // with a learning rate that moves nothing
  }
  EXPECT_GT(losses.size(), 2U);
}

TEST(StochasticDepth, AppliesOnlyInTrainingAndDiffersPerStep) {
  is_of_training_alone_and_other_in_every_step({.depth = {.rate = 0.5f}});
}

TEST(HiddenDropout, AppliesOnlyInTrainingAndDiffersPerStep) {
  is_of_training_alone_and_other_in_every_step({.hidden = 0.1f});
}

}  // namespace
}  // namespace athanor
