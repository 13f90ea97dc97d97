// Laws of training losses by source: they match the sequences of the source, for any ranks, micro-batches and
// pipelines, and training does not depend on them.
#include <gtest/gtest.h>

#include "tests/pipeline/rig.h"

namespace athanor::losses_by_source {
namespace {

using pipeline::Setting;

constexpr int64_t kSources = 4;  // the last one has no sequences

int32_t source_of(int64_t sample) { return int32_t(random_bits(1, stream_of("sources"), uint64_t(sample)) % 3); }

// only: targets of sequences of other sources are ignored; -1: no targets are ignored.
void accumulate(Engine& engine, int64_t step, bool masked, int32_t only) {
  PhaseClock clock;
  const int64_t rows = engine.options().micro_batch_size, micros = engine.step_micro_batches();
  const int64_t length = engine.options().seq_length;
  for (int64_t m = 0; m < micros; ++m) {
    std::vector<int32_t> tokens, targets, sources;
    const int64_t first = (step * micros * engine.ranks() + engine.micro_batch_order().number(m)) * rows;
    for (int64_t sample = first; sample < first + rows; ++sample) {
      ranks::append_sample(sample, tokens, targets, masked, ranks::kVocab, length);
      sources.push_back(source_of(sample));
      if (only >= 0 && sources.back() != only) std::fill(targets.end() - length, targets.end(), -1);
    }
    engine.set_sources(sources);
    engine.micro_batch(tokens, targets, clock);
  }
}

struct Outcome {
  std::vector<StepResult> steps;
  std::map<std::string, std::vector<float>> masters;
};

// Steps are collected one late, as the trainer does.
Outcome train_by_source(const Setting& s, int64_t sources = kSources, int32_t only = -1) {
  Outcome run;
  std::mutex mutex;
  run_ranks(s.ranks(), [&](std::unique_ptr<Communicator> world) {
    const CpuBackend cpu = make_cpu({.threads = 1});
    ProcessMesh mesh(std::move(world), pipeline::mesh_of(s));
    EngineOptions options = pipeline::options_of(s);
    options.sources = sources;
    Engine engine(pipeline::model_of(s), options, {*cpu.device, *cpu.ops, mesh});
    engine.commit();
    engine.init_weights();
    Outcome mine;
    PhaseClock clock;
    for (int64_t step = 0; step < 2; ++step) {
      if (step == 0 && engine.devices() == 1) {
        accumulate(engine, 7, s.of.masked, only);
        engine.discard_step();
      }
      accumulate(engine, step, s.of.masked, only);
      engine.close_step(clock);
      while (engine.uncollected() > 1) mine.steps.push_back(engine.collect());
    }
    mine.steps.push_back(engine.collect());
    mine.masters = testing::masters_by_name(engine, *cpu.device);
    const std::lock_guard lock(mutex);
    if (run.steps.empty()) run.steps = mine.steps;
    for (size_t i = 0; i < run.steps.size(); ++i) EXPECT_EQ(run.steps[i].source_sums, mine.steps[i].source_sums);
    run.masters.merge(mine.masters);
  });
  return run;
}

TEST(SourceLosses, MatchTheSequencesOfTheSource) {
  const Setting s{.of = {.accumulation = 4, .masked = true}, .layers = 2};
  const std::vector<double> sums = train_by_source(s).steps.front().source_sums;
  ASSERT_EQ(sums.size(), 2 * kSources);
  for (int32_t source = 0; source < kSources; ++source) {
    const StepState alone = train_by_source(s, 0, source).steps.front().state;
    EXPECT_NEAR(sums[size_t(source)], alone.loss, 1e-6 * alone.loss);
    EXPECT_EQ(sums[size_t(kSources + source)], alone.loss_targets);
    EXPECT_EQ(alone.loss_targets > 0, source < 3);
  }
}

TEST(SourceLosses, DoNotDependOnRanksAndDoNotAffectTraining) {
  using Schedule = PipelineSchedule;
  const ranks::Setting plain{.masked = true, .kv_heads = 4, .length = 16};
  Setting micro{.of = plain}, shards = micro, tensor = micro, gather = micro, ring = micro, workers = micro,
                              stages = micro, zero_bubble = micro;
  micro.of.accumulation = 4;
  shards.of.shards = 3, shards.of.replicas = 2, shards.of.stage = 2;
  tensor.of.tensor = 2, tensor.of.sequence = true, tensor.of.accumulation = 2;
  gather.of.context = 2, gather.of.accumulation = 2;
  ring.of.context = 2, ring.of.ring = true, ring.of.shards = 2, ring.of.stage = 1;
  workers.of.workers = 2, workers.of.outer = {.steps = 4};
  stages.stages = 2, stages.chunks = 2, stages.of.accumulation = 4, stages.schedule = Schedule::interleaved;
  zero_bubble.stages = 2, zero_bubble.of.accumulation = 4, zero_bubble.schedule = Schedule::zb1p;
  const Outcome one = train_by_source({.of = plain});
  for (const Setting& s : {micro, shards, tensor, gather, ring, workers, stages, zero_bubble}) {
    const Outcome run = train_by_source(s), without = train_by_source(s, 0);
    EXPECT_TRUE(s.of.workers > 1 || run.masters == without.masters) << s.name();  // workers have weights of their own
    for (size_t i = 0; i < run.steps.size(); ++i) {
      const StepResult& step = run.steps[i];
      EXPECT_EQ(step.state.loss, without.steps[i].state.loss) << s.name();
      EXPECT_TRUE(without.steps[i].source_sums.empty());
      double loss = 0, targets = 0;
      for (size_t k = 0; k < kSources; ++k) {
        const std::vector<double>& want = one.steps[i].source_sums;
        loss += step.source_sums[k], targets += step.source_sums[kSources + k];
        EXPECT_EQ(step.source_sums[kSources + k], want[kSources + k]) << s.name();
        if (i == 0 || s.of.workers == 1) {
          EXPECT_NEAR(step.source_sums[k], want[k], 1e-5 * want[k]) << s.name() << " step " << i;
        }
      }
      EXPECT_NEAR(loss, step.state.loss, 1e-7 * loss) << s.name() << " step " << i;
      EXPECT_EQ(targets, step.state.loss_targets) << s.name() << " step " << i;
    }
  }
}

// Losses are rounded so that their sums are exact.
TEST(SourceLosses, MatchOneRankBitExactlyIfTheWeightsDo) {
  Setting one{.of = {.leaves = 4}, .layers = 2}, two = one, four = one;
  two.of.replicas = 2, four.of.shards = 4, four.of.stage = 2;
  const Outcome want = train_by_source(one);
  for (const Setting& s : {two, four}) {
    const Outcome got = train_by_source(s);
    for (size_t i = 0; i < want.steps.size(); ++i)
      EXPECT_EQ(got.steps[i].source_sums, want.steps[i].source_sums) << s.name();
  }
}

}  // namespace
}  // namespace athanor::losses_by_source
