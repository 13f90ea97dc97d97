// Training over NCCL: with every sharding it is the run of one rank, graphs change no bit, and a rank that fails ends
// the run of all.
#include <atomic>

#include "base/rng.h"
#include "engine/engine.h"
#include "tests/cuda/train/nccl_rig.h"
#include "tests/cuda/train/tiny_model.h"

namespace athanor {
namespace {

using testing::kTinyVocab;
using testing::Nccl;
using testing::Rank;
using testing::tiny;

constexpr int64_t kSequences = 24, kLength = 6;

struct Setting {
  ModelType type = ModelType::llama;
  const char* precision = "fp32";
  int replicas = 1, shards = 1, stage = 0;
  int64_t accumulation = 1;
  bool graphs = true;
  int64_t leaves = 0;  // rank-invariant sums; micro-batches are then of six sequences
  RuleName rule = RuleName::adamw;
  int context = 1;  // ranks that share sequences
  bool ring = false;
  int64_t length = kLength;
  bool keep_codes = true;
  std::string name() const {
    return cat(name_of(type), " ", precision, " stage ", stage, " ranks ", replicas, "x", shards, "x", context,
               ring ? " ring" : "", " accumulation ", accumulation, graphs ? " captured" : " eager");
  }
};

EngineOptions options(const Setting& s) {
  EngineOptions o;
  o.recipe = make_recipe(s.precision, DType::f32);
  o.seq_length = s.length;
  o.keep_codes = s.keep_codes;
  o.context_method = s.ring ? ContextMethod::ring : ContextMethod::gather;
  o.micro_batch_size = s.leaves > 0 ? 6 : kSequences / (s.accumulation * s.replicas * s.shards);
  o.logical_shards = s.leaves;
  o.global_batch_size = kSequences;
  o.zero_stage = s.stage;
  o.graphs = s.graphs;
  o.seed = o.optimizer.seed = 5;
  o.optimizer.rule = s.rule;
  o.optimizer.groups = default_groups(s.rule);
  o.schedule = {.style = DecayStyle::constant, .lr = 3e-3, .min_lr = 3e-3};
  o.clip_grad = 0.5;
  return o;
}

// The micro-batches of one rank in one step, as the loader deals them out.
void accumulate(Engine& engine, int64_t step) {
  PhaseClock clock;
  const int64_t rows = engine.options().micro_batch_size, length = engine.options().seq_length;
  for (int64_t m = 0; m < engine.micro_batches(); ++m) {
    std::vector<int32_t> tokens, targets;
    for (int64_t i = 0; i < rows * length; ++i) {
      const int64_t turn = engine.turn(), before = (m / turn * engine.ranks() + engine.rank()) * turn + m % turn;
      const int64_t first = step * kSequences + before * rows;
      const auto at = uint64_t(first * length + i);
      tokens.push_back(int32_t(random_bits(1, 0, at) % kTinyVocab));
      targets.push_back(int32_t(random_bits(1, 1, at) % kTinyVocab));
    }
    engine.micro_batch(tokens, targets, clock);
  }
}

struct Curve {
  std::vector<double> losses;
  std::vector<float> norms;
  bool operator==(const Curve&) const = default;
};

class NcclTraining : public Nccl {
 protected:
  Curve train(const Setting& s, int64_t steps = 3) {
    std::mutex mutex;
    Curve curve;
    run(s.replicas * s.shards * s.context, [&](Rank& rank, Communicator& hosts) {
      ProcessMesh mesh(rank.nccl->split(0, rank.nccl->rank()), {1, s.replicas, s.shards, s.context, 1, 1});
      Engine engine(tiny(s.type), options(s), {*rank.cuda.device, *rank.cuda.ops, mesh});
      engine.commit();
      hosts.barrier();
      engine.init_weights();
      Curve mine;
      const auto collect = [&] {
        const StepState state = engine.collect().state;
        mine.losses.push_back(state.loss / state.loss_targets);
        mine.norms.push_back(state.grad_norm);
      };
      for (int64_t step = 0; step < steps; ++step) {
        const int64_t waits = rank.cuda.device->host_waits();
        accumulate(engine, step);
        PhaseClock clock;
        engine.close_step(clock);
        EXPECT_EQ(rank.cuda.device->host_waits(), waits) << "the host waits inside of a step";
        while (engine.uncollected() > 1) collect();
      }
      while (engine.uncollected() > 0) collect();
      rank.quiet(hosts, board_);
      const std::lock_guard lock(mutex);
      if (curve.losses.empty()) curve = mine;
      EXPECT_EQ(curve, mine) << "all ranks report one loss";
    });
    return curve;
  }

  void expect_same_run(const Curve& want, const Setting& s, double tolerance, int64_t steps = 3) {
    const Curve got = train(s, steps);
    ASSERT_EQ(got.losses.size(), want.losses.size());
    for (size_t i = 0; i < want.losses.size(); ++i)
      EXPECT_NEAR(got.losses[i], want.losses[i], tolerance * want.losses[i]) << s.name() << " step " << i;
  }
};

struct Layout {
  int replicas, shards, stage;
};
// Every stage and every way to share out; on a GPU all of them together.
std::vector<Layout> layouts() {
#ifdef ATHANOR_EMULATED_GPU
  return {{1, 2, 0}, {1, 2, 1}, {1, 4, 2}, {2, 2, 3}};
#else
  std::vector<Layout> all;
  for (const auto& [replicas, shards] : {std::pair{1, 2}, {1, 4}, {2, 2}})
    for (const int stage : {0, 1, 2, 3}) all.push_back({replicas, shards, stage});
  return all;
#endif
}

TEST_F(NcclTraining, LossesAreThoseOfOneRank) {
  for (const ModelType type : {ModelType::llama, ModelType::gpt2}) {
    const Curve want = train({.type = type});
    for (const auto& [replicas, shards, stage] : layouts())
      expect_same_run(want,
                      {.type = type,
                       .replicas = replicas,
                       .shards = shards,
                       .stage = stage,
                       .accumulation = type == ModelType::llama ? 2 : 1},
                      1e-5);
  }
}

// A byte for each weight of blocks in place of two, and the same bits.
TEST_F(NcclTraining, GatheredCodesHaveTheBitsOf16) {
  for (const int stage : {1, 3}) {
    Setting s{.precision = "fp8_tensorwise", .shards = 3, .stage = stage, .length = 8};
    const Curve codes = train(s);
    s.keep_codes = false;
    EXPECT_EQ(train(s), codes) << stage;
  }
}

// Keys and values of other ranks, gathered or hop after hop beside attention to the ones before.
TEST_F(NcclTraining, RanksThatShareSequences) {
  for (const auto& [type, context, shards] : {std::tuple{ModelType::llama, 4, 1}, {ModelType::gpt2, 2, 2}}) {
    const Curve want = train({.type = type, .length = 16}, 2);
    for (const bool ring : {false, true}) {
      Setting s{.type = type, .shards = shards, .stage = 1, .context = context, .ring = ring, .length = 16};
      expect_same_run(want, s, 1e-5, 2);
      if (!ring || context == 2) continue;
      const Curve captured = train(s);
      s.graphs = false;
      EXPECT_EQ(captured, train(s)) << s.name();
    }
  }
}

TEST_F(NcclTraining, GraphsChangeNoBit) {
  for (const auto& [replicas, shards, stage] : layouts()) {
    Setting s{.precision = "bf16", .replicas = replicas, .shards = shards, .stage = stage};
    const Curve captured = train(s);
    s.graphs = false;
    EXPECT_EQ(captured, train(s)) << s.name();
  }
}

TEST_F(NcclTraining, InvariantSumsAreTheSameBitsOnAnyRanks) {
  Setting s{.precision = "bf16", .leaves = 4};
  const Curve want = train(s);
  for (const auto& [replicas, shards, stage] : layouts()) {
    s.replicas = replicas, s.shards = shards, s.stage = stage;
    EXPECT_EQ(want, train(s)) << s.name();
  }
}

// Matrices go to their owners and updates back on another lane than the products between.
TEST_F(NcclTraining, WholeMatricesAreTheSameBitsOnAnyRanks) {
  Setting s{.precision = "bf16", .leaves = 4, .rule = RuleName::normuon};
  const Curve want = train(s, 2);
  for (const auto& [replicas, shards, stage] : {Layout{1, 4, 2}, Layout{2, 2, 3}}) {
    s.replicas = replicas, s.shards = shards, s.stage = stage;
    s.graphs = replicas == 1;
    EXPECT_EQ(want, train(s, 2)) << s.name();
  }
}

TEST_F(NcclTraining, ManyStepsInBf16) {
#ifdef ATHANOR_EMULATED_GPU
  constexpr int64_t kMany = 5;
#else
  constexpr int64_t kMany = 20;
#endif
  const Curve want = train({.precision = "bf16"}, kMany);
  for (const auto& [replicas, shards, stage] : layouts())
    expect_same_run(want, {.precision = "bf16", .replicas = replicas, .shards = shards, .stage = stage}, 5e-3, kMany);
}

// Others notice in the middle of captured steps; nothing of the engine waits for ever.
TEST_F(NcclTraining, ARankThatFailsEndsTheRunOfAll) {
  std::atomic<int> lost{0};
  EXPECT_THROW(run(3,
                   [&](Rank& rank, Communicator&) {
                     const int me = rank.nccl->rank();
                     ProcessMesh mesh(rank.nccl->split(0, me), {1, 1, 3, 1, 1, 1});
                     const Setting s{.shards = 3, .stage = 3};
                     Engine engine(tiny(s.type), options(s), {*rank.cuda.device, *rank.cuda.ops, mesh});
                     engine.commit();
                     engine.init_weights();
                     try {
                       for (int64_t step = 0; step < 5; ++step) {
                         if (me == 1 && step == 3) {
                           board_.tell("rank 1 failed: no more data");
                           throw Error("no more data");
                         }
                         accumulate(engine, step);
                         engine.finish_step();
                       }
                     } catch (const Error& e) {
                       if (me != 1) {
                         EXPECT_EQ(e.code(), Exit::peer_lost);
                         EXPECT_EQ(std::string(e.what()).rfind("rank 1 failed: no more data; rank ", 0), 0u)
                             << e.what();
                         ++lost;
                       }
                       throw;
                     }
                   }),
               Error);
  EXPECT_EQ(lost, 2);
}

}  // namespace
}  // namespace athanor
