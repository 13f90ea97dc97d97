// SR-STE (dense training of 2:4 sparse weights): the weights a step computes with, the gradient that all weights get,
// and that results do not depend on the ranks.
#include <gtest/gtest.h>

#include "tests/train/ranks_rig.h"

namespace athanor::ranks {
namespace {

using Masters = std::map<std::string, std::vector<float>>;

bool is_sparse(const std::string& name) {
  return name.find("_proj") != std::string::npos && name.find("o_proj") == std::string::npos;
}

// Marks the two of every four weights with the largest magnitude in bf16; the later one of equal weights.
std::vector<bool> kept(const std::vector<float>& w) {
  std::vector<bool> all(w.size());
  for (size_t at = 0; at < w.size(); at += 4) {
    std::vector<std::pair<float, size_t>> order;
    for (size_t i = at; i < at + 4; ++i) order.emplace_back(std::abs(to_float(from_float<bf16>(w[i]))), i);
    std::ranges::sort(order);
    all[order[2].second] = all[order[3].second] = true;
  }
  return all;
}

// Master weights after one step of SGD with clipping, and its loss.
Masters step(const Setting& s, const Masters& start, double& loss) {
  const CpuBackend cpu = make_cpu({.threads = 1});
  Masters after;
  run_ranks(1, [&](std::unique_ptr<Communicator> world) {
    ProcessMesh mesh(std::move(world), s.mesh());
    EngineOptions o = options(s);
    o.optimizer.sgd_momentum = o.optimizer.weight_decay = 0;
    Engine engine(tiny(s), o, {*cpu.device, *cpu.ops, mesh});
    engine.commit();
    engine.init_weights();
    const ParamStore& params = engine.model().params();
    for (const auto& piece : params.pieces())
      if (const auto found = start.find(piece.slice->name); found != start.end())
        std::ranges::copy(found->second, params.units()[size_t(piece.unit)]->master.as<float>() + piece.offset);
    engine.refresh_values();
    if (loss == 0) after = testing::masters_by_name(engine, *cpu.device);
    accumulate(engine, 0);
    const StepState state = engine.finish_step();
    loss = state.loss;
    EXPECT_LT(state.grad_scale, 0.5) << "gradients are clipped";
    if (after.empty()) after = testing::masters_by_name(engine, *cpu.device);
  });
  return after;
}

TEST(Sparse, SrsteStepUsesTheSparseModelAndDecaysPrunedWeights) {
  Setting dense{.type = ModelType::llama, .clip = 0.05, .lr = 0.1, .rule = RuleName::sgd}, sparse = dense;
  sparse.srste = 0.3;
  double loss = 0, want_loss = 1, got_loss = 1;
  const Masters start = step(dense, {}, loss);
  Masters masked = start;
  for (auto& [name, w] : masked) {
    if (!is_sparse(name)) continue;
    const std::vector<bool> keeps = kept(w);
    for (size_t i = 0; i < w.size(); ++i) w[i] = keeps[i] ? w[i] : 0;
  }
  const Masters want = step(dense, masked, want_loss), got = step(sparse, start, got_loss);
  EXPECT_EQ(got_loss, want_loss);
  EXPECT_NE(got_loss, loss);
  size_t decayed = 0;
  for (const auto& [name, w] : start) {
    const std::vector<bool> keeps = is_sparse(name) ? kept(w) : std::vector<bool>(w.size(), true);
    for (size_t i = 0; i < w.size(); ++i) {
      const float moved = want.at(name)[i] - masked.at(name)[i], pull = keeps[i] ? 0 : 0.1f * 0.3f * w[i];
      EXPECT_NEAR(got.at(name)[i] - w[i], moved - pull, 2e-7) << name << " " << i;
      decayed += std::abs(pull) > 1e-5f;
    }
  }
  EXPECT_GT(decayed, 100U);
}

TEST(Sparse, RanksAndStagesMatchOneRank) {
  const Setting alone{.type = ModelType::llama, .lr = 3e-3, .length = 8, .srste = 2e-4};
  const Curve want = train(alone);
  for (int stage = 0; stage <= 3; ++stage) {
    Setting s = alone;
    s.stage = stage, s.shards = stage == 0 ? 1 : 2, s.replicas = stage == 3 ? 1 : 2, s.context = stage == 2 ? 2 : 1;
    expect_same(want, train(s), 1e-5, s.name());
  }
  Setting offloaded = alone;
  offloaded.precision = "bf16";
  const Curve in_device = train(offloaded);
  offloaded.offload = 100;
  EXPECT_EQ(train(offloaded).masters, in_device.masters);
  Setting split = offloaded;
  split.offload = 0, split.master = DType::i16;
  EXPECT_EQ(train(split).losses, in_device.losses);
}

}  // namespace
}  // namespace athanor::ranks
