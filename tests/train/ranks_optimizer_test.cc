// The end of a step on several ranks: every optimizer, smaller steps, skipped spikes.
#include <gtest/gtest.h>

#include <cstring>

#include "perf/traffic.h"
#include "tests/sanitized.h"
#include "tests/train/ranks_rig.h"

namespace athanor::ranks {
namespace {

// The update from given gradients does not depend on the ranks, not even if it needs whole matrices: each matrix is
// updated by one rank, from averages that are rounded before they are sent.
TEST(Ranks, EveryOptimizerIsBitExactOnAnyRanks) {
  struct Case {
    RuleName rule;
    ModelType type;
    const char* precision;
    DType master = DType::f32, moments = DType::f32;
    double update_clip = 0;
  };
  for (const Case& c :
       {Case{RuleName::muon, ModelType::llama, "fp32"},
        Case{RuleName::normuon, ModelType::gpt2, "bf16", DType::i16, DType::bf16},
        Case{RuleName::lion, ModelType::llama, "bf16", DType::bf16},
        Case{RuleName::adamw_8bit, ModelType::gpt2, "fp32"},
        Case{RuleName::adamw_8bit, ModelType::llama, "bf16", DType::i16},
        Case{RuleName::adafactor, ModelType::gpt2, "fp32"},
        Case{RuleName::adafactor, ModelType::llama, "bf16", DType::i16},
        Case{RuleName::adafactor, ModelType::llama, "bf16", DType::bf16},
        Case{RuleName::lamb, ModelType::gpt2, "bf16", DType::i16, DType::bf16},
        Case{RuleName::lamb, ModelType::llama, "fp32"}, Case{RuleName::lamb, ModelType::llama, "bf16", DType::bf16},
        Case{RuleName::adamw, ModelType::llama, "fp32", DType::f32, DType::f32, 0.1},
        Case{RuleName::adamw, ModelType::gpt2, "bf16", DType::i16, DType::bf16, 0.1},
        Case{RuleName::sgd, ModelType::gpt2, "fp32"}, Case{RuleName::adam, ModelType::llama, "fp32"},
        Case{RuleName::schedule_free_adamw, ModelType::llama, "fp32"},
        Case{RuleName::schedule_free_adamw, ModelType::gpt2, "bf16", DType::i16, DType::bf16},
        Case{RuleName::schedule_free_adamw, ModelType::llama, "bf16", DType::bf16}}) {
    Setting s{.type = c.type,
              .precision = c.precision,
              .master = c.master,
              .moments = c.moments,
              .leaves = 4,
              .rule = c.rule,
              .update_clip = c.update_clip};
    if (c.rule == RuleName::normuon)
      s.groups = {{.match = "*.0.mlp.*weight", .lr_factor = 0.5}};  // applies to only some of a unit's matrices
    const Curve want = train(s);
    EXPECT_NE(want.losses[0], want.losses[2]);
    for (const auto& [replicas, shards] : {std::pair{1, 2}, {2, 2}, {1, 4}})
      for (const int stage : {0, 1, 2, 3}) {
        if (kSanitized && (replicas == 1) != (stage == 3)) continue;
        s.replicas = replicas, s.shards = shards, s.stage = stage;
        const Curve got = train(s);
        expect_equal(want, got, cat(kRuleNames[size_t(c.rule)], " ", s.name()));
        EXPECT_EQ(want.evaluation, got.evaluation) << kRuleNames[size_t(c.rule)] << " " << s.name();
      }
  }
}

// Weight averages are equal on any ranks, and evaluations that use them leave the weights unchanged.
TEST(Ranks, WeightAveragesAreEqualOnAnyRanks) {
  struct Case {
    const char* precision;
    DType master;
    std::vector<ParamGroup> groups = {};
  };
  for (const Case& c : {Case{"fp32", DType::f32}, Case{"bf16", DType::f32}, Case{"bf16", DType::i16},
                        Case{"bf16", DType::bf16}, Case{"fp32", DType::f32, {{.match = "*.0.mlp.*", .frozen = true}}},
                        Case{"bf16", DType::i16, {{.match = "*.0.mlp.*", .frozen = true}}}}) {
    Setting s{.precision = c.precision, .master = c.master, .leaves = 4, .groups = c.groups};
    const Curve plain = train(s);
    s.ema = 0.8;
    Setting with_tail = s;
    with_tail.ema = 0, with_tail.tail = 1;
    EXPECT_NE(train(with_tail).evaluation, train(s).evaluation);
    const Curve want = train(s);
    expect_equal(plain, want, "averages change no weight");
    EXPECT_NE(plain.evaluation, want.evaluation);
    for (const auto& [replicas, shards] : {std::pair{1, 2}, {2, 2}})
      for (const int stage : {0, 1, 2, 3}) {
        s.replicas = replicas, s.shards = shards, s.stage = stage;
        const Curve got = train(s);
        expect_equal(want, got, s.name());
        EXPECT_EQ(want.evaluation, got.evaluation) << s.name();
      }
  }
}

// AdamW stores two moments of everything; Muon, Lion and SGD store one for the weights they update.
TEST(Ranks, OptimizersPlanTheirStates) {
  Setting s;
  const size_t two = train(s, 0).optimizer;
  for (const RuleName rule : {RuleName::sgd, RuleName::lion}) {
    s.rule = rule;
    EXPECT_EQ(train(s, 0).optimizer, two / 2);
  }
  for (const RuleName rule : {RuleName::lamb, RuleName::schedule_free_adamw}) {
    s.rule = rule;
    EXPECT_EQ(train(s, 0).optimizer, two);
  }
  s.rule = RuleName::lion;
  s.ema = 0.9;  // plus the average of Lion's weights
  EXPECT_EQ(train(s, 0).optimizer, two);
  s.ema = 0;
  s.rule = RuleName::adafactor;  // one value per row and column of 14 matrices, 2 tables and 5 vectors
  EXPECT_EQ(train(s, 0).optimizer, 2 * (14 + 2 + 5) * 64 * sizeof(float));
  s.rule = RuleName::muon;
  const size_t muon = train(s, 0).optimizer;
  EXPECT_LT(muon, two);
  EXPECT_GT(muon, two / 2);
  s.rule = RuleName::normuon;  // plus one value per output of 7 matrices in 2 blocks, each aligned to a cache line
  EXPECT_EQ(train(s, 0).optimizer, muon + 2 * 7 * 64 * sizeof(float));
}

// Steps with a part of the batch, as at the start of a batch ramp.
TEST(Ranks, SmallerBatchesMatchOnAnyRanks) {
  const Curve whole = train({}), want = train({.accumulation = 4, .step = kSequences / 2});
  EXPECT_NE(whole.losses, want.losses);
  for (const int stage : {1, 3}) {
    const Setting s{.shards = 2, .stage = stage, .accumulation = 4, .step = kSequences / 2};
    expect_same(train(s), want, 1e-5, s.name());
  }
  Setting s{.leaves = 4, .step = kSequences / 2};
  const Curve invariant = train(s);
  expect_same(invariant, want, 1e-5, s.name());
  for (const auto& [replicas, shards] : {std::pair{1, 2}, {2, 2}}) {
    s.replicas = replicas, s.shards = shards, s.stage = 2;
    expect_equal(invariant, train(s), s.name());
  }
}

// Plans count the small reductions of rules that need whole tensors, and of QK-clip: 8 bytes per number, sent and
// received in halves on two ranks.
TEST(Ranks, PlansCountUpdateNormSums) {
  const auto sent = [](RuleName rule, double qk_clip, int stage) {  // bytes sent by a rank after backward
    const Setting s{.shards = 2, .stage = stage, .rule = rule, .qk_clip = qk_clip};
    double bytes = 0;
    on_ranks(s, [&](Engine& engine, ProcessMesh& mesh, const CpuBackend&) {
      engine.memory();
      if (mesh.world().rank() == 0) bytes = step_traffic(engine, mesh, {1e9, 1e9, 8}).ends.bytes;
    });
    return bytes;
  };
  const std::unique_ptr<Model> model = make_model(tiny(Setting{}));
  double tensors = 0, sides = 0;
  for (const auto& piece : model->params().pieces()) {
    const Shape& shape = piece.slice->shape;
    if (shape.rank < 2) continue;
    ++tensors, sides += double(2 * shape[0] + shape[1]);
  }
  for (const int stage : {1, 3}) {
    const double adamw = sent(RuleName::adamw, 0, stage);
    EXPECT_EQ(sent(RuleName::lamb, 0, stage) - adamw, 16 * tensors);
    EXPECT_GE(sent(RuleName::adafactor, 0, stage) - adamw, 8 * sides);
    EXPECT_EQ(sent(RuleName::adamw, 1, stage) - adamw, 2 * 4 * sizeof(float));  // 2 layers of 4 heads
  }
  EXPECT_EQ(sent(RuleName::lamb, 0, 0), sent(RuleName::adamw, 0, 0));
}

// The norm used for the gradient noise scale, of the first micro-batch of all ranks, in units of the step's mean.
TEST(Ranks, FirstMicroBatchNormsAreReducedOverDataParallelRanks) {
  const auto after_first = [](const Setting& s, int64_t first_sample) {  // on one rank
    testing::Rig rig(1);
    EngineOptions o = options(s);
    o.noise_scale = true;
    Engine engine(tiny(s.type, s.tied), o, rig.backend());
    engine.commit();
    engine.init_weights();
    PhaseClock clock;
    for (int64_t m = 0; m < engine.micro_batches(); ++m) {
      std::vector<int32_t> tokens, targets;
      for (int64_t row = 0; row < o.micro_batch_size; ++row)
        append_sample(first_sample + m * o.micro_batch_size + row, tokens, targets);
      engine.micro_batch(tokens, targets, clock);
    }
    return engine.finish_step().micro_norm;
  };
  const int64_t quarter = kSequences / 4;
  const double first = after_first({.accumulation = 4}, 0), second = after_first({.accumulation = 4}, quarter),
               both = after_first({.accumulation = 2}, 0);
  EXPECT_GT(std::abs(first - second), 1e-3 * first);
  struct Want {
    Setting s;
    double norm_sq;
    MicroGradients of;
  };
  const double two = first * first + second * second;
  for (const Want& want : {Want{{.shards = 2, .accumulation = 2}, two, {quarter, 2}},
                           Want{{.shards = 2, .stage = 1, .accumulation = 2}, two, {quarter, 2}},
                           Want{{.replicas = 2, .stage = 2, .accumulation = 2}, two, {quarter, 2}},
                           Want{{.shards = 2, .stage = 2, .accumulation = 2}, both * both, {2 * quarter, 1}},
                           Want{{.shards = 2, .stage = 3, .accumulation = 2}, both * both, {2 * quarter, 1}},
                           Want{{.shards = 2, .accumulation = 1}, 0, {2 * quarter, 2}}}) {
    EngineOptions o = options(want.s);
    o.noise_scale = true;
    on_ranks(want.s, o, [&](Engine& engine, ProcessMesh&, const CpuBackend&) {
      accumulate(engine, 0);
      const double norm = engine.finish_step().micro_norm;
      EXPECT_NEAR(norm * norm, want.norm_sq, 1e-5 * want.norm_sq) << want.s.name();
      EXPECT_EQ(engine.micro_gradients().sequences, want.of.sequences) << want.s.name();
      EXPECT_EQ(engine.micro_gradients().count, want.of.count) << want.s.name();
    });
  }
}

// All ranks judge by the same sums: with a window in which any loss is an outlier, all skip the same steps.
TEST(Ranks, AllRanksSkipTheSameSpikes) {
  SpikeWindow window;
  window.count = SpikeWindow::kSteps;
  for (int64_t i = 0; i < SpikeWindow::kSteps; ++i) window.loss[i] = window.norm[i] = i % 2 == 0 ? 0.1f : 0.2f;
  for (const Setting& s : {Setting{.replicas = 2, .shards = 1, .stage = 1}, Setting{.shards = 2, .stage = 3}}) {
    std::mutex mutex;
    std::vector<std::string> courses;
    std::vector<SpikeWindow> windows;
    EngineOptions o = options(s);
    o.spikes = {.deviations = 5, .most_in_row = 2};
    on_ranks(s, o, [&](Engine& engine, ProcessMesh&, const CpuBackend&) {
      engine.write_window(window);
      std::string course;
      for (int64_t step = 0; step < 5; ++step) {
        accumulate(engine, step);
        course += cat(engine.finish_step().spike);
      }
      const SpikeWindow after = engine.read_window();
      const std::lock_guard lock(mutex);
      courses.push_back(course);
      windows.push_back(after);
    });
    EXPECT_EQ(courses[0], "11211");  // two skipped steps, then one taken; after it the next losses are still outliers
    EXPECT_EQ(courses[0], courses[1]);
    EXPECT_EQ(std::memcmp(&windows[0], &windows[1], sizeof(SpikeWindow)), 0);
  }
}

}  // namespace
}  // namespace athanor::ranks
