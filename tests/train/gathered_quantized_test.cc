// FP8 all-gather: ranks that shard weights whose two GEMMs read the same quantized values gather those values: one byte
// per weight instead of two, with bit-identical losses, weights, evaluations and checkpoints compared with gathering 16
// bits and quantizing afterwards.
#include <gtest/gtest.h>

#include <limits>

#include "base/file.h"
#include "perf/traffic.h"
#include "tests/comm/forwarding.h"
#include "tests/sanitized.h"
#include "tests/train/ranks_rig.h"

namespace athanor::ranks {
namespace {

constexpr const char* kGathered[] = {"fp8_tensorwise", "fp8_delayed", "fp8_blockwise", "nvfp4"};

// All layers of all blocks are quantized.
Setting setting(int shards, int stage, ModelType type = ModelType::llama) {
  return {.type = type,
          .precision = "fp8_tensorwise",
          .shards = shards,
          .stage = stage,
          .hidden = 64,
          .intermediate = 96,
          .length = 8};
}

void expect_the_bits_of_16(Setting s, bool gathers = true) {
  const Curve quantized = train(s);
  s.keep_quantized = false;
  const Curve values = train(s);
  expect_equal(values, quantized, s.name());
  EXPECT_EQ(values.evaluation, quantized.evaluation) << s.name();
  if (s.stage == 3) {
    EXPECT_EQ(quantized.weights > values.weights, gathers) << s.name() << ": codes are beside the values of a shard";
  }
}

TEST(GatheredQuantized, IsBitExactForAnyRanksAndStages) {
  for (const int shards : {2, 3, 4})
    for (const int stage : {1, 2, 3})
      if (!kSanitized || shards == 3) expect_the_bits_of_16(setting(shards, stage));
}

TEST(GatheredQuantized, IsBitExactForFamiliesMasterWeightsAndRecomputation) {
  Setting gpt2 = setting(3, 3, ModelType::gpt2);
  gpt2.recompute = Recompute::Granularity::full, gpt2.accumulation = 2;
  expect_the_bits_of_16(gpt2);
  Setting copies = setting(2, 3);
  copies.replicas = 2, copies.recompute = Recompute::Granularity::selective;
  expect_the_bits_of_16(copies);
  for (const int stage : {1, 3}) {
    Setting split = setting(3, stage, ModelType::gpt2), own = split, averaged = setting(2, stage);
    split.master = DType::i16, own.master = DType::bf16, averaged.ema = 0.5;
    for (const Setting& s : {split, own, averaged}) expect_the_bits_of_16(s);
  }
  Setting leaves = setting(2, 2), frozen = setting(2, 3), muon = setting(2, 1);
  leaves.leaves = 4;
  frozen.frozen = {"mlp"};
  muon.rule = RuleName::muon;
  for (const Setting& s : {leaves, frozen, muon}) expect_the_bits_of_16(s);
}

// Shard boundaries may be anywhere within blocks of 128 x 128 and of 16 x 16.
TEST(GatheredQuantized, IsBitExactForEveryScaleLayout) {
  for (const char* precision : kGathered)
    for (const int stage : {1, 3}) {
      Setting s = setting(3, stage);
      s.precision = precision, s.hidden = 144, s.intermediate = 208;
      if (!kSanitized || stage == 3) expect_the_bits_of_16(s);
    }
}

// The head is gathered as quantized values, too, unless it is tied to the embedding.
TEST(GatheredQuantized, IsBitExactForTheHead) {
  for (const bool tied : {false, true})
    for (const int stage : {1, 3}) {
      Setting s = setting(3, stage);
      s.tied = tied, s.high_head = false;
      expect_the_bits_of_16(s);
      const Curve head = train(s);
      s.high_head = true;
      EXPECT_NE(head.masters, train(s).masters);
    }
}

// If only few of a block's weights are quantized, the rest would be unsharded on every rank.
TEST(GatheredQuantized, OtherRecipesAndMostlyHighPrecisionBlocksGather16Bits) {
  for (const char* precision : {"fp8_rowwise", "fp8_rowwise_gw_hp", "mxfp8"}) {
    Setting s = setting(2, 3);
    s.precision = precision;
    if (!kSanitized || s.precision == std::string("mxfp8")) expect_the_bits_of_16(s, false);
  }
  for (const int64_t odd : {24, 40}) {  // not multiples of 16
    Setting s = setting(3, 3);
    s.intermediate = odd;
    expect_the_bits_of_16(s, odd == 24);
  }
}

// Bytes gathered for the weights of blocks, by any kind of all-gather.
struct Sent {
  int64_t gathered = 0, others = 0;
};
class Counted final : public Forwarding {
 public:
  Counted(std::unique_ptr<Communicator> inner, Sent& sent) : Forwarding(std::move(inner)), sent_(sent) {}
  std::unique_ptr<Communicator> split(int color, int key) override {
    return std::make_unique<Counted>(inner_->split(color, key), sent_);
  }
  void all_gather(Tensor full, Tensor shard, Stream stream) override {
    if (of_block()) sent_.gathered += int64_t(full.bytes() - shard.bytes());
    inner_->all_gather(full, shard, stream);
  }
  void all_to_all(std::span<const Tensor> out, std::span<const Tensor> in, Stream stream) override {
    for (const Tensor& t : in)
      if (t && of_block()) sent_.others += int64_t(t.bytes());
    inner_->all_to_all(out, in, stream);
  }

 private:
  static bool of_block() { return CollectiveSubject::words().find("layers.") != std::string::npos; }
  Sent& sent_;
};

struct Rank {
  Engine& engine;
  Backend& backend;
  Sent& sent;
};
template <class Body>
void on_quantized_ranks(const Setting& s, const Body& body) {
  run_ranks(s.ranks(), [&](std::unique_ptr<Communicator> world) {
    const CpuBackend cpu = make_cpu({.threads = 1});
    Sent sent;
    ProcessMesh mesh(std::make_unique<Counted>(std::move(world), sent), s.mesh());
    Backend backend{*cpu.device, *cpu.ops, mesh};
    backend.control = &mesh.world();
    EngineOptions o = options(s);
    o.quantized = true;
    Engine engine(tiny(s), o, backend);
    engine.commit();
    engine.init_weights();
    body(Rank{engine, backend, sent});
  });
}

TEST(GatheredQuantized, HalvesTrafficAndThePlanCountsIt) {
  for (const int stage : {1, 3}) {
    Sent of[2];
    double planned[2] = {}, others = 0, amax = 0;
    size_t arena[2] = {};
    for (const bool quantized : {false, true}) {
      Setting s = setting(4, stage);
      s.keep_quantized = quantized, s.accumulation = 2;
      std::mutex mutex;
      on_quantized_ranks(s, [&](const Rank& r) {
        accumulate(r.engine, 0);
        r.sent = {};
        r.engine.finish_step();
        accumulate(r.engine, 1);
        const StepTraffic traffic = step_traffic(r.engine, r.backend.mesh, {1e9, 1e9, 8});
        const std::lock_guard lock(mutex);
        if (r.backend.mesh.world().rank() != 0) return;
        EXPECT_TRUE(r.engine.low_precision().ends_with(quantized ? "; ranks gather quantized weights of all"
                                                                 : "; ranks gather 16 bits"))
            << r.engine.low_precision();
        of[quantized] = r.sent;
        planned[quantized] = stage == 3 ? traffic.gathers.bytes : traffic.ends.bytes;
        amax = 2 * 0.75 * double(r.engine.quantized()->amax_of_shards());
        arena[quantized] =
            r.engine.memory().total(MemoryKind::activations) + r.engine.memory().total(MemoryKind::weights);
        for (const auto& unit : r.engine.model().params().units())
          if (unit->others) others += 0.75 * double(unit->others.bytes());
      });
    }
    EXPECT_GT(of[1].gathered, 0) << stage;
    EXPECT_EQ(2 * of[1].gathered, of[0].gathered) << stage;
    EXPECT_LT(of[1].others, of[1].gathered / 16) << stage;
    EXPECT_LT(planned[1], 0.75 * planned[0]) << "the embedding and the head are in 16 bits, stage " << stage;
    if (stage == 1) {
      EXPECT_EQ(planned[0] - planned[1] + others + amax, double(of[1].gathered));
    }
    EXPECT_LT(arena[1], arena[0]) << stage;
  }
}

// A non-finite weight on one rank must reach the GEMMs of all ranks.
TEST(GatheredQuantized, NonFiniteValuesSkipTheStepOnAllRanks) {
  for (const char* precision : kGathered)
    for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()})
      for (const int stage : {1, 3}) {
        Setting s = setting(3, stage);
        s.precision = precision;
        on_quantized_ranks(s, [&](const Rank& r) {
          const ParamStore::Unit& unit = *r.engine.model().params().units()[2];
          if (r.backend.mesh.world().rank() == 1) *unit.own(unit.master).as<float>() = bad;
          r.engine.refresh_values();
          accumulate(r.engine, 0);
          EXPECT_EQ(r.engine.finish_step().skip, 1) << bad << " stage " << stage << " " << precision;
        });
      }
}

// Every element of a weight is counted once, on one rank of one replica.
void expect_statistics_of_the_whole(const char* precision) {
  std::map<std::string, QuantizeStatistics> of_stage[2];
  for (const int stage : {0, 3}) {
    Setting s = setting(2, stage);
    s.replicas = 2, s.precision = precision;
    on_quantized_ranks(s, [&](const Rank& r) {
      accumulate(r.engine, 0);
      r.engine.finish_step();
      const auto found = r.engine.take_quantized();
      if (r.backend.mesh.world().rank() != 0) return;
      for (const QuantizedOperand& q : found)
        if (matrix_of(q.operand) == Matrix::w)
          of_stage[stage > 0][r.engine.model().params().spec(q.parameter).name] = q.statistics;
    });
  }
  ASSERT_EQ(of_stage[0].size(), of_stage[1].size());
  EXPECT_FALSE(of_stage[0].empty());
  for (const auto& [name, want] : of_stage[0]) {
    const QuantizeStatistics& got = of_stage[1].at(name);
    EXPECT_NEAR(want.values, got.values, 2) << precision << name << ": norms of gradients round with the stage";
    EXPECT_EQ(want.saturated, got.saturated) << precision << name;
    EXPECT_NEAR(want.underflowed, got.underflowed, 0.01 * want.values) << precision << name;
    EXPECT_NEAR(want.amax, got.amax, 1e-2 * want.amax) << precision << name;
  }
}
TEST(GatheredQuantized, StatisticsMatchTheFullWeight) {
  for (const char* precision : kGathered) expect_statistics_of_the_whole(precision);
}

TEST(GatheredQuantized, CheckpointsResumeAtOtherStagesAndMatch16Bits) {
  const testing::TempDir dir;
  Setting first = setting(2, 3), then = setting(2, 1);
  std::map<std::string, std::vector<std::byte>> files[2];
  for (const bool quantized : {false, true}) {
    first.keep_quantized = then.keep_quantized = quantized;
    const std::string a = cat(dir.path(), "/a", quantized), b = cat(dir.path(), "/b", quantized);
    run_part(first, "", 0, 2, a);
    run_part(then, cat(a, "/", step_folder(2)), 2, 4, b);
    files[quantized] = tensors_of(cat(b, "/", step_folder(4)));
  }
  EXPECT_FALSE(files[0].empty());
  EXPECT_EQ(files[0], files[1]);
}

}  // namespace
}  // namespace athanor::ranks
