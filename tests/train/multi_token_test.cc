// Multi-token prediction in whole steps: results do not depend on ranks, micro-batches and documents.
#include <gtest/gtest.h>

#include "tests/train/ranks_rig.h"

namespace athanor::ranks {
namespace {

TEST(MultiToken, LossDoesNotDependOnRanksAndMicroBatches) {
  Setting one{.type = ModelType::llama, .masked = true, .ahead = {0.5f, 0.25f}, .length = 8};
  const Curve want = train(one);
  for (int stage = 0; stage <= 3; ++stage) {
    Setting s = one;
    s.stage = stage, s.shards = stage == 0 ? 1 : 2, s.replicas = stage == 0 ? 2 : 1, s.accumulation = 2;
    if (stage == 1) s.recompute = Recompute::Granularity::full;
    expect_same(want, train(s), 1e-5, s.name());
  }
  for (const bool sequence : {false, true}) {
    Setting s = one;
    s.tensor = 2, s.sequence = sequence;
    expect_same(want, train(s), 1e-5, s.name());
  }
  for (const bool ring : {false, true}) {
    Setting s = one;
    s.context = 2, s.ring = ring;
    expect_same(want, train(s), 1e-5, s.name());
  }
}

// The gradient of the sum of losses that a row has by the next token, and by the one after it in its document.
TEST(MultiToken, WeightsScaleTheLossesOfTokensFurtherAhead) {
  Setting s{.type = ModelType::llama, .clip = 0};
  s.documents = true;
  const auto norm = [&](std::vector<float> weights) {
    s.ahead = std::move(weights);
    return train(s, 1).norms[0];
  };
  const double alone = norm({});
  EXPECT_NEAR(norm({0, 0}), alone, 1e-6 * alone) << "a weight of 0 changes nothing";
  EXPECT_GT(std::abs(norm({1}) - alone), 0.01 * alone);
  s.length = 1;  // no row has a next one
  s.documents = false;
  const double of_one = norm({});
  EXPECT_NEAR(norm({1, 1}), of_one, 1e-6 * of_one) << "sequences of one token have none further ahead";
}

// Weights that a schedule sets count from the next micro-batch on.
TEST(MultiToken, WeightsMayChangeBetweenSteps) {
  Setting s{.type = ModelType::llama, .clip = 0, .lr = 0, .ahead = {1}};
  on_ranks(s, [&](Engine& engine, ProcessMesh&, const CpuBackend&) {
    const auto norm = [&] {
      accumulate(engine, 0);
      return engine.finish_step().grad_norm;
    };
    const double with = norm();
    engine.set_ahead_weights({0});
    const double without = norm();
    EXPECT_GT(std::abs(with - without), 0.01 * with);
    engine.set_ahead_weights({1});
    EXPECT_EQ(norm(), with);
  });
}

}  // namespace
}  // namespace athanor::ranks
