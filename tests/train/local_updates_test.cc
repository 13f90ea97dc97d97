// Laws of local updates (DiLoCo): workers that train separately in rounds and are averaged at the end of each round.
#include <gtest/gtest.h>

#include "checkpoint/layout.h"
#include "tests/larger_error.h"
#include "tests/temp_dir.h"
#include "tests/train/ranks_rig.h"

namespace athanor::ranks {
namespace {

// The outer step applies the mean movement of the workers.
constexpr OuterOptions plain(int64_t steps) { return {.steps = steps, .learning_rate = 1, .momentum = 0}; }

Setting two_workers(OuterOptions outer) { return {.clip = 0, .workers = 2, .outer = outer}; }

double most_difference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double most = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    most = testing::larger_error(most, std::abs(double(a[i]) - double(b[i])));
  return most;
}

// State of every rank after some steps; each step may be modified before it finishes.
struct AfterSteps {
  std::vector<std::vector<float>> masters, router_biases;
  std::vector<StepState> states;
  std::vector<double> evaluations, evaluations_of_weights;
};

AfterSteps after(const Setting& s, int64_t steps, const std::function<void(Engine&, int64_t step)>& change = {}) {
  AfterSteps all;
  all.router_biases.resize(size_t(s.ranks()));
  all.masters.resize(size_t(s.ranks())), all.states.resize(size_t(s.ranks()));
  all.evaluations.resize(size_t(s.ranks())), all.evaluations_of_weights.resize(size_t(s.ranks()));
  run_ranks(s.ranks(), [&](std::unique_ptr<Communicator> world) {
    const CpuBackend cpu = make_cpu({.threads = 1});
    auto background = s.background ? world->split(0, world->rank()) : nullptr;
    ProcessMesh mesh(std::move(world), s.mesh(), std::move(background));
    Engine engine(tiny(s), options(s), {*cpu.device, *cpu.ops, mesh});
    engine.commit();
    engine.init_weights();
    const auto rank = size_t(mesh.world().rank());
    for (int64_t step = 0; step < steps; ++step) {
      accumulate(engine, step, s.masked);
      if (change) change(engine, step);
      all.states[rank] = engine.finish_step();
      if (engine.round_ends(step + 1)) engine.end_rounds(step + 1);
    }
    all.masters[rank] = testing::all_masters(engine, *cpu.device);
    if (const Param bias = engine.model().router_bias()) {
      const Tensor t = engine.model().params().value(bias);
      const auto* values = static_cast<const float*>(t.data);
      all.router_biases[rank].assign(values, values + t.numel());
    }
    std::vector<int32_t> tokens, targets;
    for (int64_t row = 0; row < engine.options().micro_batch_size; ++row) append_sample(row, tokens, targets);
    all.evaluations_of_weights[rank] = engine.evaluate(tokens, targets);
    ASSERT_EQ(engine.has_averages(), s.outer.steps > 0);
    if (engine.has_averages()) engine.use_averages();
    all.evaluations[rank] = engine.evaluate(tokens, targets);
    if (engine.has_averages()) engine.use_weights();
    EXPECT_EQ(all.masters[rank], testing::all_masters(engine, *cpu.device)) << "an evaluation leaves the weights";
  });
  return all;
}

// Also if workers have different numbers of targets: each gradient is divided by the mean number.
TEST(LocalUpdates, OneStepSgdRoundsMatchDataParallelTraining) {
  for (const bool masked : {false, true}) {
    Setting local = two_workers(plain(1));
    local.masked = masked, local.rule = RuleName::sgd, local.lr = 0.3;
    local.groups = {{.momentum = 0}};
    Setting whole = local;
    whole.workers = 1, whole.replicas = 2, whole.outer = {};
    const Curve want = train(whole, 4), got = train(local, 4);
    for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(got.losses[i], want.losses[i], 1e-6 * want.losses[i]) << masked;
    EXPECT_LT(most_difference(want.masters, got.masters), 1e-6) << masked;
    EXPECT_GT(most_difference(train(whole, 0).masters, want.masters), 1e-3) << "something was learned";
  }
}

// The tokens of all workers are counted in every step, so that router biases stay equal on all workers.
TEST(LocalUpdates, RouterBiasesAreTheSameOnAllWorkers) {
  Setting local = two_workers({.steps = 4});
  local.type = ModelType::dots1;
  Setting whole = local;
  whole.workers = 1, whole.replicas = 2, whole.outer = {};
  const auto one = after(local, 1).router_biases;
  EXPECT_EQ(one, after(whole, 1).router_biases) << "weights are the same in the first step";
  EXPECT_GT(*std::ranges::max_element(one[0]), 0);
  const auto later = after(local, 6).router_biases;
  EXPECT_EQ(later[0], later[1]);
  EXPECT_NE(later[0], one[0]);
  const Setting compressed{
      .type = ModelType::dots1, .clip = 0, .rule = RuleName::onebit_adam, .workers = 2, .freeze = 2};
  const auto biases = after(compressed, 4).router_biases;
  EXPECT_EQ(biases[0], biases[1]);
}

// Equal within rounding: theta - (theta - w) is not always w.
TEST(LocalUpdates, OneWorkerWithoutOuterMomentumMatchesPlainTraining) {
  for (const char* precision : {"fp32", "bf16"}) {
    const Setting want{.precision = precision, .clip = 0};
    Setting local = want;
    local.outer = plain(2);
    const Curve a = train(want, 4), b = train(local, 4);
    EXPECT_LT(most_difference(a.masters, b.masters), 1e-6) << precision;
    EXPECT_NEAR(a.losses[3], b.losses[3], 1e-6 * a.losses[3]) << precision;
    local.outer.fragments = 2;
    EXPECT_LT(most_difference(a.masters, train(local, 4).masters), 1e-6) << precision;
  }
}

// Compares three rounds with the formula in double: v = mu v + d; theta -= eta (d + mu v).
TEST(LocalUpdates, OuterStepMatchesNesterovMomentum) {
  Setting s{.clip = 0, .outer = {.steps = 2, .learning_rate = 0.7, .momentum = 0.9}};
  on_ranks(s, [&](Engine& engine, ProcessMesh&, const CpuBackend& cpu) {
    std::vector<float> theta = testing::all_masters(engine, *cpu.device);
    std::vector<double> v(theta.size());
    for (int64_t step = 0; step < 6; ++step) {
      accumulate(engine, step);
      engine.finish_step();
      const std::vector<float> w = testing::all_masters(engine, *cpu.device);
      ASSERT_EQ(engine.round_ends(step + 1), step % 2 == 1);
      if (!engine.round_ends(step + 1)) continue;
      engine.end_rounds(step + 1);
      const std::vector<float> next = testing::all_masters(engine, *cpu.device);
      double most = 0, moved = 0;
      for (size_t i = 0; i < v.size(); ++i) {
        const double d = double(theta[i]) - double(w[i]);
        v[i] = 0.9 * v[i] + d;
        most = testing::larger_error(most, std::abs(double(next[i]) - (double(theta[i]) - 0.7 * (d + 0.9 * v[i]))));
        moved = std::max(moved, std::abs(double(next[i]) - double(w[i])));
      }
      EXPECT_LT(most, 1e-6) << step;
      EXPECT_GT(moved, 1e-3) << step;
      theta = next;
    }
  });
}

// Compares two workers with a loop in double. The last step uses the deltas in flight at once.
TEST(LocalUpdates, DelayedOuterStepsMatchTheFormula) {
  constexpr int64_t kRound = 4, kDelay = 2, kEnd = 9;
  constexpr double kMixing = 0.25;
  const Setting s = two_workers({.steps = kRound, .delay = kDelay, .mixing = kMixing});
  std::vector<float> initial;
  std::vector<std::vector<float>> before[2], after[2];  // weights by worker and step, around end_rounds()
  on_ranks(s, [&](Engine& engine, ProcessMesh& mesh, const CpuBackend& cpu) {
    const int worker = mesh.workers().rank();
    if (worker == 0) initial = testing::all_masters(engine, *cpu.device);
    for (int64_t step = 1; step <= kEnd; ++step) {
      accumulate(engine, step - 1);
      engine.finish_step();
      before[worker].push_back(testing::all_masters(engine, *cpu.device));
      if (engine.round_ends(step) || step == kEnd) engine.end_rounds(step, step == kEnd);
      after[worker].push_back(testing::all_masters(engine, *cpu.device));
    }
    EXPECT_TRUE(engine.in_flight().empty());
  });
  std::vector<double> theta(initial.begin(), initial.end()), v(theta.size()), d;
  int64_t outer_steps = 0;
  for (int64_t step = 1; step <= kEnd; ++step) {
    const auto at = size_t(step - 1);
    if (!d.empty() && (step % kRound == kDelay || step == kEnd)) {
      double most = 0, moved = 0;
      for (size_t i = 0; i < v.size(); ++i) {
        v[i] = 0.9 * v[i] + d[i];
        theta[i] -= 0.7 * (d[i] + 0.9 * v[i]);
        for (const int k : {0, 1}) {
          const double w = kMixing * double(before[k][at][i]) + (1 - kMixing) * theta[i];
          most = testing::larger_error(most, std::abs(double(after[k][at][i]) - w));
          moved = std::max(moved, std::abs(w - double(before[k][at][i])));
        }
      }
      EXPECT_LT(most, 1e-6) << step;
      EXPECT_GT(moved, 1e-3) << step;
      d.clear();
      ++outer_steps;
    } else {
      for (const int k : {0, 1}) EXPECT_EQ(before[k][at], after[k][at]) << step;
    }
    if (step % kRound != 0) continue;
    for (size_t i = 0; i < v.size(); ++i)
      d.push_back(theta[i] - (double(before[0][at][i]) + double(before[1][at][i])) / 2);
  }
  EXPECT_EQ(outer_steps, 2);
}

TEST(LocalUpdates, OverlappedDeltasAreBitExact) {
  for (const DeltaDtype deltas : {DeltaDtype::fp32, DeltaDtype::fp4}) {
    Setting s = two_workers({.steps = 3, .fragments = 2, .delay = 1, .mixing = 0.5, .deltas = deltas});
    s.precision = "bf16", s.frozen = {"layers.0.mlp"};
    const AfterSteps want = after(s, 5);
    Setting at_once = s, background = s;
    at_once.offload = 256, background.background = true;
    for (const Setting& other : {at_once, background}) {
      const AfterSteps got = after(other, 5);
      EXPECT_EQ(want.masters, got.masters) << other.name();
      EXPECT_EQ(want.evaluations, got.evaluations) << other.name();
    }
  }
}

TEST(LocalUpdates, WorkersAgreeOnFourBitDeltas) {
  Setting s{.clip = 0, .workers = 3, .outer = {.steps = 2, .deltas = DeltaDtype::fp4}};
  const AfterSteps got = after(s, 2);
  EXPECT_EQ(got.masters[0], got.masters[1]);
  EXPECT_EQ(got.masters[0], got.masters[2]);
  s.outer.deltas = DeltaDtype::fp32;
  const std::vector<float> want = after(s, 2).masters[0], initial = after(s, 0).masters[0];
  double lost = 0, moved = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    lost += std::pow(double(want[i]) - double(got.masters[0][i]), 2);
    moved += std::pow(double(want[i]) - double(initial[i]), 2);
  }
  EXPECT_LT(std::sqrt(lost / moved), 0.1);
  EXPECT_GT(std::sqrt(lost / moved), 0.01);
}

TEST(LocalUpdates, WorkersDifferWithinARoundAndAgreeAfterIt) {
  const Setting s = two_workers({.steps = 3});
  const AfterSteps in = after(s, 2), at_end = after(s, 3);
  EXPECT_GT(most_difference(in.masters[0], in.masters[1]), 1e-4);
  EXPECT_EQ(at_end.masters[0], at_end.masters[1]);
  EXPECT_EQ(in.evaluations[0], in.evaluations[1]) << "evaluations read the global weights";
  EXPECT_NE(in.evaluations_of_weights[0], in.evaluations_of_weights[1]);
  EXPECT_EQ(in.evaluations[0], after(s, 1).evaluations[0]) << "which stay during a round";
  EXPECT_EQ(at_end.evaluations[0], at_end.evaluations_of_weights[0]);
}

TEST(LocalUpdates, FragmentsSynchronizeInRotation) {
  Setting s = two_workers({.steps = 4, .fragments = 2});
  s.outer.momentum = 0;
  const AfterSteps two = after(s, 2), four = after(s, 4);
  size_t same = 0;
  for (size_t i = 0; i < two.masters[0].size(); ++i) same += two.masters[0][i] == two.masters[1][i] ? 1 : 0;
  EXPECT_GT(same, two.masters[0].size() / 8) << "the first fragment agrees";
  EXPECT_LT(same, two.masters[0].size() * 7 / 8) << "the second one does not";
  same = 0;
  for (size_t i = 0; i < four.masters[0].size(); ++i) same += four.masters[0][i] == four.masters[1][i] ? 1 : 0;
  EXPECT_LT(same, four.masters[0].size()) << "the first one has trained on";
  s.outer.fragments = 1;
  EXPECT_EQ(after(s, 4).masters[0], after(s, 4).masters[1]);
}

TEST(LocalUpdates, AnyMeshWithinAWorkerMatches) {
  for (const RuleName rule : {RuleName::adamw, RuleName::muon}) {
    Setting s = two_workers({.steps = 2});
    s.rule = rule;
    const Curve want = train(s, 4);
    for (int stage = 0; stage <= 3; ++stage) {
      Setting sharded = s;
      sharded.stage = stage;
      (stage == 0 ? sharded.replicas : sharded.shards) = 2;
      if (rule == RuleName::muon && stage != 1) continue;
      expect_same(want, train(sharded, 4), 1e-5, sharded.name());
    }
    Setting tensor = s;
    tensor.tensor = 2;
    expect_same(want, train(tensor, 4), 1e-5, tensor.name());
    Setting delayed = s;
    delayed.outer.steps = 3, delayed.outer.delay = 1;
    const Curve want_delayed = train(delayed, 4);
    delayed.shards = 2, delayed.stage = 2;
    expect_same(want_delayed, train(delayed, 4), 1e-5, delayed.name());
    Setting accumulated = s;
    accumulated.replicas = 2, accumulated.accumulation = 4;
    expect_same(want, train(accumulated, 4), 1e-5, accumulated.name());
  }
}

// The norm is the RMS of the workers' norms, and all workers are clipped alike.
TEST(LocalUpdates, WorkersClipAndSkipTogether) {
  Setting s = two_workers({.steps = 3});
  s.clip = 0.5;
  const AfterSteps good = after(s, 1);
  EXPECT_EQ(good.states[0].grad_norm, good.states[1].grad_norm);
  EXPECT_EQ(good.states[0].grad_scale, good.states[1].grad_scale);
  double square = 0;
  for (const int worker : {0, 1}) {
    const Setting alone{.clip = 0, .sequences = kSequences / 2};
    on_ranks(alone, [&](Engine& engine, ProcessMesh&, const CpuBackend&) {
      accumulate(engine, worker);
      square += std::pow(double(engine.finish_step().grad_norm), 2) / 2;
    });
  }
  EXPECT_NEAR(good.states[0].grad_norm, std::sqrt(square), 1e-5 * std::sqrt(square));
  const AfterSteps bad = after(s, 2, [](Engine& engine, int64_t step) {
    if (step == 1 && engine.rank() == 1) engine.poison_step();
  });
  for (const size_t rank : {0, 1}) {
    EXPECT_EQ(bad.states[rank].skip, 1) << rank;
    EXPECT_EQ(bad.states[rank].updates, 1) << rank;
    EXPECT_EQ(bad.masters[rank], good.masters[rank]) << "a step that one worker cannot make is skipped by all";
  }
}

TEST(LocalUpdates, ResumesBitExactlyFromAnyStepOfARound) {
  std::vector<Setting> settings = {two_workers({.steps = 2}), {.master = DType::f32, .outer = {.steps = 2}}};
  settings[0].precision = "bf16", settings[0].master = DType::i16, settings[0].shards = 2, settings[0].stage = 1;
  settings[1].rule = RuleName::muon, settings[1].frozen = {"embed_tokens"};
  for (const Setting& s : settings) expect_exact_resume(s, {3, 4}, 5);
}

// Rounds end after steps 2, 4, 6: at each stop the deltas of one fragment are in flight.
TEST(LocalUpdates, ResumesBitExactlyWithDeltasInFlight) {
  Setting s = two_workers({.steps = 4, .fragments = 2, .delay = 2, .mixing = 0.5, .deltas = DeltaDtype::fp4});
  s.precision = "bf16", s.master = DType::i16, s.shards = 2, s.stage = 1;
  expect_exact_resume(s, {2, 5}, 7);
}

// The ranks within a worker may change between save and load.
TEST(LocalUpdates, CheckpointsStoreAllWorkersAndRefuseAnotherNumber) {
  const testing::TempDir dir;
  const Setting s = two_workers({.steps = 2});
  run_part(s, "", 0, 3, dir / "first");
  const std::string folder = cat(dir / "first", "/", step_folder(3));
  const auto files = tensors_of(folder);
  EXPECT_TRUE(files.contains("optimizer worker0.m.model.norm.weight"));
  EXPECT_TRUE(files.contains("optimizer worker1.local_weight.model.norm.weight"));
  EXPECT_TRUE(files.contains("optimizer outer_momentum.model.norm.weight"));
  EXPECT_NE(files.at("optimizer worker0.local_weight.model.norm.weight"), files.at("model model.norm.weight"));
  Setting sharded = s;
  sharded.shards = 2, sharded.stage = 2;
  const double want = run_part(s, folder, 3, 5, dir / "same").back();
  EXPECT_NEAR(run_part(sharded, folder, 3, 5, dir / "sharded").back(), want, 1e-5 * want);
  for (const Setting& other : {Setting{.outer = {.steps = 2}}, Setting{}}) {
    try {
      run_part(other, folder, 3, 4, dir / "other");
      ADD_FAILURE() << other.name();
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("2 workers"), std::string::npos) << e.what();
    }
  }
}

TEST(LocalUpdates, PlanCountsGlobalWeightsAndOuterMomentum) {
  const Setting plain_run{.shards = 2, .stage = 1};
  Setting local = plain_run;
  local.outer = {.steps = 2};
  const size_t before = train(plain_run, 1).optimizer, with = train(local, 1).optimizer;
  EXPECT_EQ(with, 2 * before) << "theta and v beside m and v, sharded like these";
  local.outer.momentum = 0;
  EXPECT_EQ(train(local, 1).optimizer, before + before / 2);
  local.outer.delay = 1;
  EXPECT_EQ(train(local, 1).optimizer, 2 * before) << "deltas in flight";
}

}  // namespace
}  // namespace athanor::ranks
