// Master weights and optimizer states in host memory change no bit, with any optimizer and any ranks, and do not affect
// checkpoints.
#include <gtest/gtest.h>

#include "tests/train/ranks_rig.h"

namespace athanor {
namespace {

using namespace ranks;

constexpr int64_t kStretch = 256;  // elements: units consist of several chunks, whose ends lie within tensors

void expect_same_bits(Setting s, const std::string& what) {
  const Curve want = train(s);
  s.offload = kStretch;
  const Curve got = train(s);
  expect_equal(want, got, cat(what, " ", s.name()));
  EXPECT_EQ(want.evaluation, got.evaluation) << what;
  EXPECT_EQ(want.host, 0u);
  EXPECT_GT(got.host, 0u) << what;
}

TEST(Offload, IsBitExactForEveryOptimizer) {
  struct Case {
    RuleName rule;
    const char* precision;
    DType master = DType::f32, moments = DType::f32;
    double update_clip = 0;
  };
  int stage = 0;
  for (const Case& c :
       {Case{RuleName::adamw, "bf16"}, Case{RuleName::adamw, "bf16", DType::i16, DType::bf16},
        Case{RuleName::adamw, "fp32"}, Case{RuleName::adamw, "bf16", DType::i16, DType::bf16, 0.1},
        Case{RuleName::adam, "fp16"}, Case{RuleName::sgd, "bf16", DType::i16},
        Case{RuleName::lion, "bf16", DType::bf16}, Case{RuleName::muon, "bf16", DType::i16, DType::bf16},
        Case{RuleName::normuon, "bf16"}, Case{RuleName::adamw_8bit, "bf16", DType::i16},
        Case{RuleName::lamb, "bf16", DType::i16, DType::bf16}, Case{RuleName::lamb, "bf16"},
        Case{RuleName::adafactor, "bf16"}, Case{RuleName::schedule_free_adamw, "bf16", DType::i16}})
    expect_same_bits({.precision = c.precision,
                      .master = c.master,
                      .shards = 2,
                      .stage = stage++ % 4,  // a different stage for each rule
                      .moments = c.moments,
                      .rule = c.rule,
                      .update_clip = c.update_clip},
                     kRuleNames[size_t(c.rule)]);
}

TEST(Offload, IsBitExactForEveryZeroStage) {
  for (const RuleName rule : {RuleName::adamw, RuleName::muon, RuleName::lamb})
    for (const int stage : {0, 1, 2, 3})
      expect_same_bits({.type = ModelType::gpt2,
                        .precision = "bf16",
                        .master = DType::i16,
                        .replicas = 2,
                        .shards = 2,
                        .stage = stage,
                        .leaves = stage % 2 ? 4 : 0,
                        .rule = rule},
                       kRuleNames[size_t(rule)]);
}

TEST(Offload, IsBitExactWithAveragesAndQkClip) {
  expect_same_bits({.precision = "bf16", .master = DType::i16, .shards = 2, .stage = 2, .ema = 0.8}, "ema");
  expect_same_bits({.precision = "fp32", .tail = 1}, "tail average");
  expect_same_bits({.precision = "bf16",
                    .rule = RuleName::schedule_free_adamw,
                    .groups = {{.match = "*.0.mlp.*", .frozen = true}},
                    .qk_clip = 1e-4},
                   "QK-clip");
  expect_same_bits({.precision = "bf16", .shards = 2, .stage = 3, .lora = 2}, "adapters");
}

// Weights and gradients of all units, or of some of them, are in host memory.
TEST(Offload, UnitsInHostMemoryAreBitExact) {
  struct Case {
    Setting setting;
    int64_t units = 100, stretch = 0;
  };
  for (const Case& c : {
           Case{{.precision = "fp32"}},
           Case{{.tied = true, .precision = "bf16", .master = DType::i16, .accumulation = 3}, 100, kStretch},
           Case{{.type = ModelType::gpt2,
           .tied = true,
           .precision = "bf16",
           .accumulation = 2,
           .recompute = Recompute::Granularity::full,
           .gradients = DType::bf16},
                2,
                kStretch},
           Case{{.precision = "fp16", .accumulation = 2, .recompute = Recompute::Granularity::selective}, 1},
           Case{{.precision = "bf16", .master = DType::i16, .rule = RuleName::lion, .ema = 0.8}, 3, kStretch},
           Case{{.precision = "fp32", .rule = RuleName::sgd, .tail = 1}},
           Case{{.precision = "bf16", .rule = RuleName::adamw_8bit, .qk_clip = 1e-4}, 100, kStretch},
           Case{{.precision = "bf16", .master = DType::i16, .rule = RuleName::schedule_free_adamw}, 100, kStretch},
           Case{{.precision = "bf16", .lora = 2}, 100, kStretch},
           Case{{.tied = true, .precision = "bf16", .master = DType::i16, .shards = 2, .stage = 3, .accumulation = 2},
                100,
                kStretch},
           Case{{.type = ModelType::gpt2, .precision = "fp32", .shards = 4, .stage = 3}, 2},
           Case{{.precision = "bf16", .shards = 2, .stage = 3, .lora = 2, .ema = 0.5}},
           Case{{.precision = "bf16", .lora = 2, .nf4 = true}},
           Case{{.precision = "bf16", .teacher = true}},
           Case{{.type = ModelType::athanor, .precision = "bf16", .accumulation = 2}},
           Case{{.type = ModelType::dots1, .precision = "bf16", .accumulation = 2}, 100, kStretch},
       }) {
    Setting s = c.setting;
    const Curve want = train(s);
    s.host_units = c.units, s.offload = c.stretch;
    const Curve got = train(s);
    expect_equal(want, got, s.name());
    EXPECT_EQ(want.evaluation, got.evaluation) << s.name();
    EXPECT_GT(got.host, 0u) << s.name();
    EXPECT_LT(got.weights + got.gradients, want.weights + want.gradients) << s.name();
  }
}

// Also if only every second block is recomputed, and with several micro-batches.
TEST(Offload, BlockInputsInHostMemoryAreBitExact) {
  Setting s{.precision = "bf16", .shards = 2, .stage = 3, .accumulation = 2, .recompute = Recompute::Granularity::full};
  const Curve want = train(s);
  s.offload_inputs = true;
  const Curve got = train(s);
  expect_equal(want, got, s.name());
  EXPECT_EQ(want.host, 0u);
  EXPECT_GT(got.host, 0u);
  EXPECT_LE(got.planned[0], want.planned[0]);
}

TEST(Offload, IsBitExactWithLocalUpdates) {
  for (const DType master : {DType::f32, DType::i16})
    expect_same_bits(
        {.precision = "bf16", .master = master, .shards = 2, .stage = 1, .workers = 2, .outer = {.steps = 3}},
        "local updates");
  expect_same_bits({.precision = "bf16", .workers = 2, .outer = {.steps = 2, .delay = 1, .deltas = DeltaDtype::fp4}},
                   "delayed updates");
}

TEST(Offload, IsBitExactWithPruning) {
  const auto masters = [](int64_t offload) {
    testing::Rig rig(1);
    Setting s{.precision = "bf16", .master = DType::i16, .offload = offload};
    EngineOptions o = options(s);
    o.pruning = PruningOptions{};
    Engine engine(tiny(s), o, rig.backend());
    engine.commit();
    testing::DeviceMemoryOps in_device(*rig.ops, engine.memory());
    engine.set_ops(in_device);
    engine.init_weights();
    engine.prune(0.5);
    ranks::accumulate(engine, 0);
    engine.finish_step();
    return testing::all_masters(engine, *rig.device);
  };
  const std::vector<float> want = masters(0);
  EXPECT_GT(std::ranges::count(want, 0.0f), int64_t(want.size()) / 4);
  EXPECT_EQ(want, masters(kStretch));
}

// Checkpoints with and without offload are equal, and either run resumes from the other's, on other ranks.
TEST(Offload, CheckpointsMatchAndResumeEitherWay) {
  Setting s{.precision = "bf16", .master = DType::i16, .shards = 2, .stage = 2, .leaves = 4, .rule = RuleName::normuon};
  s.tail = 1;
  const testing::TempDir dir;
  const auto at = [&](const char* run, int64_t step) { return cat(dir / run, "/", step_folder(step)); };
  run_part(s, "", 0, 2, dir / "plain");
  const std::vector<double> want = run_part(s, at("plain", 2), 2, 4, dir / "plain");
  Setting on_host = s;
  on_host.offload = kStretch;
  run_part(on_host, "", 0, 2, dir / "host");
  EXPECT_EQ(tensors_of(at("plain", 2)), tensors_of(at("host", 2)));
  EXPECT_EQ(want, run_part(on_host, at("plain", 2), 2, 4, dir / "host"));
  EXPECT_EQ(tensors_of(at("plain", 4)), tensors_of(at("host", 4)));
  Setting others = on_host;
  others.shards = 1, others.replicas = 2, others.tensor = 1;
  EXPECT_EQ(want, run_part(others, at("host", 2), 2, 4, dir / "others"));
  EXPECT_EQ(tensors_of(at("plain", 4)), tensors_of(at("others", 4)));
}

// Each master weight and state crosses the link once in each direction; LAMB reads master weights twice, because it
// computes norms first.
TEST(Offload, CountsTransferredBytes) {
  const auto engine = [](RuleName rule, auto check) {
    testing::Rig rig(1);
    const Setting s{.precision = "bf16", .rule = rule, .offload = kStretch};
    Engine e(tiny(s), options(s), rig.backend());
    check(e.memory(), e.state_traffic());
  };
  const auto size = [](const MemoryPlan& plan, MemoryKind kind) {
    size_t bytes = 0;  // without alignment padding
    for (const auto& line : plan.lines())
      if (line.kind == kind && line.where == Mem::pinned) bytes += line.target->bytes();
    return int64_t(bytes);
  };
  engine(RuleName::adamw, [&](const MemoryPlan& plan, const StateTraffic& t) {
    EXPECT_EQ(plan.total(MemoryKind::masters), 0u);
    EXPECT_EQ(plan.total(MemoryKind::optimizer), 0u);
    EXPECT_EQ(t.in, size(plan, MemoryKind::masters) + size(plan, MemoryKind::optimizer));
    EXPECT_EQ(t.out, t.in);
  });
  engine(RuleName::lamb, [&](const MemoryPlan& plan, const StateTraffic& t) {
    const int64_t masters = size(plan, MemoryKind::masters), states = size(plan, MemoryKind::optimizer);
    EXPECT_GT(t.in, masters + states);
    EXPECT_LE(t.in, 2 * masters + 2 * states) << "tensors without trust ratios are brought with the others once more";
    EXPECT_LT(t.out, t.in);
  });
}

TEST(Offload, CheckpointsOfOffloadedUnitsResumeOnOtherRanks) {
  Setting s{.precision = "bf16", .master = DType::i16, .shards = 2, .stage = 3};
  Setting on_host = s;
  on_host.host_units = 100, on_host.offload = kStretch;
  const testing::TempDir dir;
  const auto at = [&](const char* run, int64_t step) { return cat(dir / run, "/", step_folder(step)); };
  run_part(s, "", 0, 2, dir / "plain");
  const std::vector<double> want = run_part(s, at("plain", 2), 2, 4, dir / "plain");
  run_part(on_host, "", 0, 2, dir / "host");
  EXPECT_EQ(tensors_of(at("plain", 2)), tensors_of(at("host", 2)));
  EXPECT_EQ(want, run_part(on_host, at("plain", 2), 2, 4, dir / "host"));
  EXPECT_EQ(tensors_of(at("plain", 4)), tensors_of(at("host", 4)));
  EXPECT_EQ(want, run_part(s, at("host", 2), 2, 4, dir / "back"));
}

// Weights cross the link in forward and again in backward, except those of the head, which are still there; gradients
// cross it twice.
TEST(Offload, CountsTransferredBytesOfUnits) {
  testing::Rig rig(1);
  const Setting s{.precision = "bf16", .host_units = 100};
  Engine e(tiny(s), options(s), rig.backend());
  const MemoryPlan& plan = e.memory();
  const auto size = [&](MemoryKind kind, const std::string& unit) {
    int64_t bytes = 0;
    for (const auto& line : plan.lines())
      if (line.kind == kind && line.where == Mem::pinned && line.name.ends_with(unit))
        bytes += int64_t(line.target->bytes());
    return bytes;
  };
  const UnitTraffic& t = e.unit_traffic();
  const std::string last = cat("unit ", e.model().params().units().size() - 1);
  EXPECT_GT(size(MemoryKind::weights, last), 0);
  EXPECT_EQ(t.forward.bytes, size(MemoryKind::weights, ""));
  EXPECT_EQ(t.forward.waited, size(MemoryKind::weights, "unit 0"));
  EXPECT_EQ(t.backward.bytes, t.forward.bytes - size(MemoryKind::weights, last));
  EXPECT_EQ(t.gradients.bytes, size(MemoryKind::gradients, ""));
  EXPECT_EQ(t.gradients_out, t.gradients.bytes);
  EXPECT_EQ(t.gradients.waited, size(MemoryKind::gradients, last) + size(MemoryKind::gradients, "unit 2"));
}

}  // namespace
}  // namespace athanor
