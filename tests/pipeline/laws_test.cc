// Pipelines: stages that hold some of the blocks match one rank, for any order of micro-batches and with all other
// parallelism.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <thread>

#include "tests/comm/forwarding.h"
#include "tests/pipeline/rig.h"

namespace athanor {
namespace {

using namespace pipeline;
using S = PipelineSchedule;
using G = Recompute::Granularity;

constexpr S kSchedules[] = {S::one_f_one_b, S::interleaved, S::gpipe, S::zb1p, S::zbv};
constexpr int64_t kBatch = 56;  // divides among 1, 2, 4 and 7 micro-batches of two ranks

Setting small(int stages, int64_t micro_batches, S schedule = S::one_f_one_b) {
  Setting s{.stages = stages, .schedule = schedule};
  s.of.accumulation = micro_batches;
  s.of.sequences = s.of.step = kBatch;
  if (schedule == S::interleaved || schedule == S::zbv) s.chunks = 2;
  return s;
}

TEST(Pipeline, LossesMatchOneRank) {
  const Curve want = train(small(1, 1));
  for (const S schedule : kSchedules)
    for (const int stages : {2, 3, 4})
      for (const int64_t micro_batches : {1, 2, 4, 7})
        for (const int copies : {1, 2}) {
          Setting s = small(stages, micro_batches, schedule);
          s.of.replicas = copies;
          expect_same(want, train(s), 1e-5, s.name());
        }
}

TEST(Pipeline, IsDeterministicAndInitialWeightsMatchOneRank) {
  for (const S schedule : kSchedules) {
    Setting s = small(3, 7, schedule);
    s.of.replicas = 2;
    expect_equal(train(s), train(s), s.name());
    EXPECT_EQ(train(s, 0).masters, train(s.alone(), 0).masters) << s.name();
  }
}

// Every stage accumulates a micro-batch's gradients after the previous one, as one rank does: bits are identical except
// for the tied embedding on two stages.
TEST(Pipeline, UntiedModelsMatchOneRankBitExactly) {
  for (const S schedule : {S::one_f_one_b, S::gpipe, S::zb1p, S::zbv}) {
    Setting s = small(4, 4, schedule), one = s;
    one.stages = one.chunks = 1, one.schedule = S::one_f_one_b;
    const Curve want = train(one), got = train(s);
    EXPECT_EQ(got.losses[0], want.losses[0]) << s.name();
    expect_same(want, got, 1e-6, s.name());
  }
}

// Records the names of transfers and delays every third one.
class Slow final : public Forwarding {
 public:
  using Forwarding::Forwarding;
  static std::unique_ptr<Communicator> wrap(std::unique_ptr<Communicator> inner) {
    return std::make_unique<Slow>(std::move(inner));
  }
  std::unique_ptr<Communicator> split(int color, int key) override { return wrap(inner_->split(color, key)); }
  void start_send(Tensor x, int dst, Stream stream) override {
    note();
    inner_->start_send(x, dst, stream);
  }
  void recv(Tensor x, int src, Stream stream) override {
    note();
    inner_->recv(x, src, stream);
  }
  static std::set<std::string> take_names() {
    const std::lock_guard lock(mutex_);
    return std::exchange(names_, {});
  }

 private:
  void note() {
    {
      const std::lock_guard lock(mutex_);
      names_.insert(CollectiveSubject::name());
    }
    if (rank() == 1 && ++calls_ % 3 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  int calls_ = 0;
  static inline std::mutex mutex_;
  static inline std::set<std::string> names_;
};

TEST(Pipeline, DelaysDoNotChangeBitsAndTransfersAreNamed) {
  for (const S schedule : kSchedules) {
    const Setting s = small(3, 4, schedule);
    expect_equal(train(s), train(s, 3, Slow::wrap), s.name());
    const std::set<std::string> names = Slow::take_names();
    for (const char* name : {"receiving the activations of micro-batch 3, chunk 0 on stage 1",
                             "sending the gradient of micro-batch 0, chunk 0 on stage 2"})
      EXPECT_TRUE(names.contains(name)) << s.name();
  }
}

TEST(Pipeline, TiedEmbeddingsMasksAndFamiliesMatchOneRank) {
  for (const ModelType type :
       {ModelType::gpt2, ModelType::llama, ModelType::qwen3, ModelType::mixtral, ModelType::dots1})
    for (const bool tied : {true, false}) {
      Setting s = small(4, 4);
      s.of.type = type, s.of.tied = tied, s.of.masked = true, s.of.z_loss = 0.1, s.of.vocab = 131;
      s.of.softcap = tied ? 0.5 : 0;
      const Curve want = train(s.alone());
      expect_same(want, train(s), 1e-5, s.name());
      s.schedule = S::interleaved, s.stages = s.chunks = 2, s.of.replicas = 2;
      expect_same(want, train(s), 1e-5, s.name());
      s.schedule = S::zbv;
      expect_same(want, train(s), 1e-5, s.name());
    }
}

// The teacher is on the last stage alone; its cached logits are given with every micro-batch.
TEST(Pipeline, DistillationMatchesOneRank) {
  for (const int64_t top_k : {0, 5})
    for (const S schedule : {S::one_f_one_b, S::interleaved}) {
      Setting s = small(2, 4, schedule);
      s.of.teacher = true, s.of.masked = true, s.of.top_k = top_k;
      const Curve want = train(s.alone());
      for (const double each : want.distilled) EXPECT_GT(each, 0.001);
      s.of.replicas = 2;
      expect_same(want, train(s), 1e-5, s.name());
    }
}

TEST(Pipeline, MicroBatchesKeepTheirOwnDocuments) {
  for (const S schedule : kSchedules) {
    Setting s = small(2, 7, schedule);
    s.of.documents = true;
    Setting one = s.alone();
    one.of.accumulation = 7;
    expect_same(train(one), train(s), 1e-5, s.name());
  }
}

TEST(Pipeline, RecomputationIsBitExact) {
  for (const S schedule : {S::interleaved, S::zbv}) {
    Setting s = small(3, 4, schedule);
    const Curve none = train(s);
    for (const G recompute : {G::selective, G::full}) {
      if (recompute == G::full && splits_backward(schedule)) continue;
      s.of.recompute = recompute;
      expect_equal(none, train(s), s.name());
    }
  }
}

// Split backward computes the same sums as whole backward: a delayed weight gradient reads the values that it would
// have read immediately, even if activation gradients were overwritten since.
TEST(Pipeline, DelayedWeightGradientsMatch1F1BBitExactly) {
  for (const ModelType type : {ModelType::gpt2, ModelType::llama, ModelType::qwen2, ModelType::olmoe})
    for (const G recompute : {G::none, G::selective}) {
      Setting s = small(3, 7);
      s.of.type = type, s.of.recompute = recompute, s.of.vocab = 131;
      const Curve want = train(s);
      s.schedule = S::zb1p;
      expect_equal(want, train(s), s.name());
    }
}

// Matrices are complete on their stage. Also weight averages and explicit layouts.
TEST(Pipeline, OptimizersShardsAndLayoutsMatchOneRank) {
  for (const RuleName rule : {RuleName::muon, RuleName::normuon, RuleName::adafactor, RuleName::lamb}) {
    Setting s = small(2, 4);
    s.of.rule = rule, s.of.shards = 2, s.of.stage = 1, s.of.tied = true;
    s.layout = {5, 3};
    expect_same(train(s.alone()), train(s), 2e-5, cat(s.name(), " rule ", int(rule)));
  }
  Setting s = small(3, 4);
  s.of.ema = 0.7, s.of.lr = 0.05;
  s.layout = {1, 6, 1};
  Setting one = s.alone();
  one.of.accumulation = s.of.accumulation;  // the same micro-batch is evaluated
  const Curve want = train(one), got = train(s);
  expect_same(want, got, 1e-5, s.name());
  EXPECT_NEAR(got.evaluation, want.evaluation, 1e-5 * want.evaluation);
}

// Each stage scales the heads of its blocks.
TEST(Pipeline, QkClipMatchesOneRank) {
  Setting s = small(3, 4);
  s.of.lr = 0.03, s.of.qk_clip = 0.05;
  const Curve got = train(s);
  expect_same(train(s.alone()), got, 2e-5, s.name());
  s.of.qk_clip = 1e9;
  EXPECT_NE(train(s).losses, got.losses);
}

// Micro-batches in flight do not share an amax. Quantized values match one rank as long as the weights do.
TEST(Pipeline, Fp8AndFp4RecipesMatchOneStage) {
  for (const char* precision : {"fp8_tensorwise", "fp8_delayed", "mxfp8", "nvfp4"})
    for (const S schedule : {S::one_f_one_b, S::zbv}) {
      Setting s = small(2, 4, schedule), one = s;
      s.of.precision = one.of.precision = precision, s.of.hidden = one.of.hidden = 64;
      s.of.intermediate = one.of.intermediate = 64;
      s.of.recompute = G::selective;
      one.stages = one.chunks = 1, one.schedule = S::one_f_one_b;
      const Curve want = train(one), got = train(s);
      EXPECT_EQ(got.losses[0], want.losses[0]) << precision << s.name();
      EXPECT_NEAR(got.norms[0], want.norms[0], 1e-5 * want.norms[0]) << precision << s.name();
      expect_same(want, got, 1e-3, cat(precision, s.name()));
    }
}

// The experts of a stage's blocks are on the ranks of that stage.
TEST(Pipeline, ExpertParallelismMatchesOneRank) {
  for (const S schedule : {S::one_f_one_b, S::zbv}) {
    Setting s = small(2, 4, schedule);
    s.of.type = ModelType::mixtral, s.of.shards = s.of.experts = 5;  // one each
    s.of.sequences = s.of.step = 40;
    expect_same(train(s.alone()), train(s), 1e-5, s.name());
  }
}

TEST(Pipeline, GrowingBatchesMatchOneRank) {
  for (const S schedule : {S::one_f_one_b, S::gpipe, S::zb1p, S::zbv}) {
    Setting s = small(3, 4, schedule);
    s.of.step = kBatch / 2;
    Setting one = s.alone();
    one.of.accumulation = 4;
    expect_same(train(one), train(s), 1e-5, s.name());
  }
}

TEST(Pipeline, EvaluationsMatchOneRank) {
  const double want = train(small(1, 1), 1).evaluation;
  for (const S schedule : {S::one_f_one_b, S::interleaved, S::zbv}) {
    const Setting s = small(4, 1, schedule);
    EXPECT_NEAR(train(s, 1).evaluation, want, 1e-5 * want) << s.name();
  }
}

TEST(Pipeline, OtherParallelAxesMatchOneRank) {
  for (const bool sequence : {false, true}) {
    Setting s = small(2, 4);
    s.of.tensor = 2, s.of.sequence = sequence, s.of.length = 8, s.of.tied = true;
    expect_same(train(s.alone()), train(s), 1e-5, s.name());
    const Setting zero = [s]() mutable { return s.schedule = S::zbv, s.chunks = 2, s; }();
    expect_same(train(zero.alone()), train(zero), 1e-5, zero.name());
    s.of.rule = RuleName::muon, s.of.shards = 2, s.of.stage = 1;
    expect_same(train(s.alone()), train(s), 1e-5, s.name());
  }
  for (const bool ring : {false, true}) {
    Setting s = small(2, 4, S::interleaved);
    s.of.context = 2, s.of.ring = ring, s.of.length = 8;
    expect_same(train(s.alone()), train(s), 1e-5, s.name());
  }
}

// Both stages that have a tied table quantize it; the head's stage reads the result.
TEST(Pipeline, QuantizedValuesOfATiedHeadCountOnce) {
  const auto values = [](int stages) {
    Setting s = small(stages, 4);
    s.of.precision = "fp8_tensorwise", s.of.high_head = false, s.of.tied = true, s.of.intermediate = 32;
    double count = 0;
    run_ranks(s.ranks(), [&](std::unique_ptr<Communicator> world) {
      const CpuBackend cpu = make_cpu({.threads = 1});
      ProcessMesh mesh(std::move(world), mesh_of(s));
      EngineOptions o = options_of(s);
      o.quantized = true;
      Engine engine(model_of(s), o, {*cpu.device, *cpu.ops, mesh, nullptr, &mesh.world()});
      engine.commit();
      engine.init_weights();
      ranks::accumulate(engine, 0);
      engine.finish_step();
      const std::vector<QuantizedOperand> found = engine.take_quantized();
      if (mesh.world().rank() > 0) return;
      for (const QuantizedOperand& q : found)
        if (q.parameter.id == engine.model().head().id && q.operand == Operand::forward_w) count = q.statistics.values;
    });
    return count;
  };
  const double one = values(1);
  EXPECT_GT(one, 0);
  EXPECT_EQ(values(2), one);
}

// A stage's plan is what it allocates; a frame of activations for each micro-batch under way, and no other stage's
// weights.
TEST(Pipeline, PlansHoldActivationsOfInFlightMicroBatches) {
  const auto activations = [](S schedule, int64_t micro_batches) {
    Setting s = small(4, micro_batches, schedule);
    s.of.sequences = s.of.step = 7 * micro_batches;  // micro-batches of one size
    s.layout = schedule == S::interleaved ? std::vector{1, 1, 1, 1, 1, 1, 1, 1} : std::vector{2, 2, 2, 2};
    return train(s, 1).activations;
  };
  const auto few = activations(S::one_f_one_b, 4), many = activations(S::one_f_one_b, 8);
  EXPECT_EQ(few, many) << "as many are under way";
  EXPECT_GT(few[1], few[2]);
  const size_t frame = few[1] - few[2];  // of two blocks between others
  EXPECT_GT(frame, 0u);
  const auto all = activations(S::gpipe, 4), twice = activations(S::gpipe, 8);
  EXPECT_EQ(all[1], few[1] + frame) << "4 frames, and 3";
  EXPECT_EQ(twice[1], all[1] + 4 * frame);
  Setting s = small(4, 4);
  const Curve pipe = train(s, 1), one = train(s.alone(), 1);
  for (const size_t planned : pipe.planned) EXPECT_LT(planned, one.planned[0]);
}

}  // namespace
}  // namespace athanor
