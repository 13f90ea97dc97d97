// Training over NCCL: with every sharding, and with context and tensor parallelism, it matches the run of one rank;
// graphs change no bit, and a rank that fails ends the run of all ranks.
#include <atomic>

#include "base/rng.h"
#include "engine/engine.h"
#include "tests/comm/forwarding.h"
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
  int64_t leaves = 0;  // logical shards of rank-invariant sums, with micro-batches of six sequences; 0: off
  RuleName rule = RuleName::adamw;
  int context = 1;  // context-parallel size
  bool ring = false;
  int64_t length = kLength;
  int tensor = 1;          // tensor-parallel size
  bool sequence = false;   // sequence parallelism
  bool beside = true;      // overlap tensor-parallel all-reduces with GEMMs
  int64_t kv_heads = 1;    // of the llama family
  int64_t head_dim = 0;    // 0: hidden size divided by heads
  int64_t forgotten = -1;  // index of the call in a step that tensor-parallel ranks leave out
  bool keep_quantized = true;
  DType gradients = DType::f32;
  int experts = 1;      // expert-parallel size: number of shards with different experts
  double balance = 0;   // coefficient of the balance loss over the global batch
  int64_t offload = 0;  // elements per chunk of master weights and optimizer states in host memory; 0: kept in device
                        // memory
  RecomputeGranularity recompute = RecomputeGranularity::none;
  bool offload_inputs = false;  // offloads inputs of recomputed blocks to host memory
  int64_t host_units = 0;       // units whose weights and gradients are in host memory
  int64_t layers = 0;           // 0: that of the tiny model
  int stages = 1;               // pipeline-parallel size
  PipelineSchedule schedule = PipelineSchedule::one_f_one_b;
  int workers = 1;  // workers of local updates, or that compress momentum, after `freeze` steps
  int64_t freeze = 0;
  OuterOptions outer = {};
  PackedTraffic packed = {};
  int ranks() const { return stages * replicas * shards * context * tensor * workers; }
  std::string name() const {
    return cat(name_of(type), " ", precision, " stage ", stage, " ranks ", replicas, "x", shards, "x", context, "x",
               tensor, experts > 1 ? cat(" experts ", experts) : "", workers > 1 ? cat(" workers ", workers) : "",
               stages > 1 ? cat(" stages ", stages, " schedule ", int(schedule)) : "", ring ? " ring" : "",
               sequence ? " rows" : "", " accumulation ", accumulation, graphs ? " captured" : " eager");
  }
};

ModelConfig model(const Setting& s) {
  ModelConfig m = tiny(s.type);
  if (s.type == ModelType::llama) m.num_key_value_heads = s.kv_heads;
  if (s.head_dim > 0) m.head_dim = s.head_dim;
  if (s.layers > 0) m.num_hidden_layers = s.layers;
  m.router_aux_loss_coef = s.balance;
  return m;
}

// A world whose groups along one axis leave out one call per step: its destination keeps its old content. Since an
// earlier gather may have put the same rows there, the rows of other ranks are zeroed first.
struct Forgotten {
  int64_t at = -1, next = 0;
  std::vector<std::byte> nothing = std::vector<std::byte>(1 << 20);
  const void* zeros(size_t bytes) const {
    CHECK(bytes <= nothing.size(), bytes, " bytes of ", nothing.size());
    return nothing.data();
  }
};
class Forgetful final : public Forwarding {
 public:
  Forgetful(std::unique_ptr<Communicator> inner, Forgotten& what, Device& device, int splits)
      : Forwarding(std::move(inner)), what_(what), device_(device), splits_(splits) {}
  std::unique_ptr<Communicator> split(int color, int key) override {
    std::unique_ptr<Communicator> part = inner_->split(color, key);
    if (splits_++ != int(Axis::tp)) return part;
    return std::make_unique<Forgetful>(std::move(part), what_, device_, -1);
  }
  void all_reduce(Tensor x, Reduce how, Stream stream) override {
    if (!forgets()) inner_->all_reduce(x, how, stream);
  }
  void all_gather(Tensor full, Tensor shard, Stream stream) override {
    if (!forgets()) return inner_->all_gather(full, shard, stream);
    for (int rank = 0; rank < size(); ++rank) {
      const void* part = rank == inner_->rank() ? shard.data : what_.zeros(shard.bytes());
      device_.copy(full.at(shard.numel() * rank), part, shard.bytes(), stream);
    }
  }
  void reduce_scatter(Tensor shard, Tensor full, Reduce how, Stream stream) override {
    if (!forgets()) inner_->reduce_scatter(shard, full, how, stream);
  }

 private:
  bool forgets() { return splits_ < 0 && what_.next++ == what_.at; }
  Forgotten& what_;
  Device& device_;
  int splits_;  // number of splits so far, in the order of the axes; -1: a watched group
};

EngineOptions options(const Setting& s) {
  EngineOptions o;
  o.recipe = make_recipe(s.precision, DType::f32);
  o.recipe.gradients = s.gradients;
  o.seq_length = s.length;
  o.sequence_parallel = s.sequence;
  o.overlaps_sums = s.beside;
  o.least_piece = 1;
  o.keep_quantized = s.keep_quantized;
  o.context_method = s.ring ? ContextMethod::ring : ContextMethod::gather;
  o.micro_batch_size = s.leaves > 0 ? 6 : kSequences / (s.accumulation * s.replicas * s.shards * s.workers);
  o.logical_shards = s.leaves;
  o.global_batch_size = kSequences;
  o.zero_stage = s.stage;
  o.graphs = s.graphs;
  const bool chunks = s.schedule == PipelineSchedule::interleaved || s.schedule == PipelineSchedule::zbv;
  o.pipeline = {.schedule = s.schedule, .chunks = chunks ? 2 : 1};
  o.seed = o.optimizer.seed = 5;
  o.optimizer.rule = s.rule;
  if (s.freeze > 0) o.optimizer.freeze_step = s.freeze;
  o.optimizer.groups = default_groups(s.rule);
  o.outer = s.outer;
  o.packed = s.packed;
  o.aux_loss_scope = AuxLossScope::global_batch;
  o.schedule = {.style = DecayStyle::constant, .lr = 3e-3, .min_lr = 3e-3};
  o.clip_grad = 0.5;
  o.recompute.granularity = s.recompute;
  o.offload_inputs = s.offload_inputs;
  o.host_units = s.host_units;
  if (s.offload > 0) o.states_home = {.mem = Mem::pinned, .stretch = s.offload};
  return o;
}

// Runs the micro-batches of one rank in one step, with the samples that the loader would give it.
void accumulate(Engine& engine, int64_t step) {
  PhaseClock clock;
  const int64_t rows = engine.options().micro_batch_size, length = engine.options().seq_length;
  for (int64_t m = 0; m < engine.micro_batches(); ++m) {
    std::vector<int32_t> tokens, targets;
    for (int64_t i = 0; i < rows * length; ++i) {
      const int64_t first = step * kSequences + engine.micro_batch_order().number(m) * rows;
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
    run(s.ranks(), [&](Rank& rank, Communicator& hosts) {
      Forgotten forgotten{.at = s.forgotten};
      auto world = rank.nccl->split(0, rank.nccl->rank());
      if (s.forgotten >= 0) world = std::make_unique<Forgetful>(std::move(world), forgotten, *rank.cuda.device, 0);
      ProcessMesh mesh(std::move(world), {.stages = s.stages,
                                          .copies = s.replicas,
                                          .shards = s.shards,
                                          .context = s.context,
                                          .tensor = s.tensor,
                                          .experts = s.experts,
                                          .workers = s.workers,
                                          .delayed = s.outer.delay > 0});
      Engine engine(model(s), options(s), {*rank.cuda.device, *rank.cuda.ops, mesh});
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
        forgotten.next = 0;
        accumulate(engine, step);
        PhaseClock clock;
        engine.set_compressed(step >= s.freeze);
        engine.close_step(clock);
        EXPECT_EQ(rank.cuda.device->host_waits(), waits) << "the host waits inside of a step";
        while (engine.uncollected() > 1) collect();
        if (!engine.round_ends(step + 1)) continue;
        while (engine.uncollected() > 0) collect();
        engine.end_rounds(step + 1);
      }
      while (engine.uncollected() > 0) collect();
      rank.quiet(hosts, board_);
      const std::lock_guard lock(mutex);
      if (curve.losses.empty()) curve = mine;
      if (s.forgotten >= 0) return;
      EXPECT_EQ(curve, mine) << "all ranks report one loss";
    });
    return curve;
  }

  Curve expect_same_run(const Curve& want, const Setting& s, double tolerance, int64_t steps = 3) {
    const Curve got = train(s, steps);
    EXPECT_EQ(got.losses.size(), want.losses.size());
    for (size_t i = 0; i < std::min(got.losses.size(), want.losses.size()); ++i)
      EXPECT_NEAR(got.losses[i], want.losses[i], tolerance * want.losses[i]) << s.name() << " step " << i;
    return got;
  }
};

struct Layout {
  int replicas, shards, stage;
};
// Every stage and several shardings; on a GPU all combinations.
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

TEST_F(NcclTraining, LossesMatchOneRank) {
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

// Sends overlap compute in separate streams; also with tensor parallelism and sharded gradients.
TEST_F(NcclTraining, PipelineStagesMatchOneRank) {
  const Setting one{.kv_heads = 2, .layers = 4};
  const Curve want = train(one);
  for (const auto& [schedule, stages, shards, tensor] : {std::tuple{PipelineSchedule::one_f_one_b, 4, 1, 1},
                                                         {PipelineSchedule::interleaved, 2, 2, 1},
                                                         {PipelineSchedule::zb1p, 2, 1, 2},
                                                         {PipelineSchedule::zbv, 2, 1, 1}}) {
    Setting s = one;
    s.schedule = schedule, s.stages = stages, s.shards = shards, s.tensor = tensor, s.accumulation = 3;
    s.stage = shards > 1 ? 1 : 0;
    const Curve captured = expect_same_run(want, s, 1e-5);
    s.graphs = false;
    EXPECT_EQ(train(s), captured) << s.name();
  }
}

// Stages send while block inputs are copied.
TEST_F(NcclTraining, OffloadedBlockInputsOfAPipelineAreBitExact) {
  Setting s{.accumulation = 3, .recompute = RecomputeGranularity::full, .layers = 4, .stages = 2};
  const Curve want = train(s);
  s.offload_inputs = true;
  EXPECT_EQ(train(s), want) << s.name();
}

// Also if matrices are exchanged, or norms summed, between the passes that load moments and master weights.
TEST_F(NcclTraining, OffloadIsBitExact) {
  for (const auto& [rule, stage] : {std::pair{RuleName::muon, 3}, {RuleName::lamb, 1}}) {
    Setting s{.precision = "bf16", .shards = 2, .stage = stage, .rule = rule};
    const Curve want = train(s);
    s.offload = 512;
    EXPECT_EQ(want, train(s)) << kRuleNames[size_t(rule)] << " " << s.name();
  }
}

// Shards are loaded from host memory before the all-gather, and gradients return there after the reduce-scatter.
TEST_F(NcclTraining, OffloadedShardsAreBitExact) {
  Setting s{.precision = "bf16", .shards = 2, .stage = 3, .accumulation = 2};
  const Curve want = train(s);
  s.offload = 512, s.host_units = 100;
  EXPECT_EQ(want, train(s)) << s.name();
}

// Steps with uncompressed gradients and those with compressed momentum are two graphs.
TEST_F(NcclTraining, OneBitMomentumIsBitExactInGraphs) {
  Setting s{.rule = RuleName::onebit_adam, .workers = 3, .freeze = 3};
  const Curve captured = train(s, 8);
  Setting eager = s;
  eager.graphs = false;
  EXPECT_EQ(captured, train(eager, 8));
  Setting whole = s;
  whole.freeze = 8;
  EXPECT_NE(train(whole, 8).losses.back(), captured.losses.back());
  Setting sharded = s;
  sharded.workers = 2;
  const Curve two = train(sharded, 8);
  sharded.shards = 2, sharded.stage = 3;
  expect_same_run(two, sharded, 1e-5, 8);
  Setting lamb{.shards = 2, .stage = 3, .rule = RuleName::onebit_lamb, .workers = 2, .freeze = 2};
  const Curve scaled = train(lamb, 4);
  lamb.graphs = false;
  EXPECT_EQ(scaled, train(lamb, 4));
}

// Gradients and weights in 4 bits, with copies also in 8: sums and all-gathers overlap compute and are captured.
TEST_F(NcclTraining, FourBitGradientsAndWeightsAreBitExactInGraphs) {
  for (const auto& [replicas, shards, stage] : {std::tuple{1, 3, 1}, {2, 2, 2}}) {
    Setting s{.precision = "bf16", .replicas = replicas, .shards = shards, .stage = stage, .accumulation = 2};
    const Curve whole = train(s);
    s.packed = {.gradients = true, .weights = true};
    const Curve captured = train(s);
    EXPECT_NE(captured, whole) << s.name();
    for (size_t i = 0; i < whole.norms.size(); ++i)
      EXPECT_NEAR(captured.norms[i], whole.norms[i], 0.05 * whole.norms[i]) << s.name() << " step " << i;
    s.graphs = false;
    EXPECT_EQ(train(s), captured) << s.name();
  }
}

// Deltas sent on a separate stream while graphs of steps are replayed give the same bits as deltas sent synchronously.
TEST_F(NcclTraining, DeltasOverlappedWithStepsAreBitExact) {
  for (const DeltaDtype deltas : {DeltaDtype::fp32, DeltaDtype::fp4}) {
    Setting s{.workers = 2, .outer = {.steps = 3, .fragments = 2, .delay = 2, .mixing = 0.5, .deltas = deltas}};
    const Curve beside = train(s, 7);
    Setting at_once = s;
    at_once.offload = 512;
    EXPECT_EQ(beside, train(at_once, 7)) << int(deltas);
    s.outer.mixing = 0;
    EXPECT_NE(beside, train(s, 7)) << int(deltas);
  }
}

// FP8 all-gather: one byte per weight of the blocks instead of two, with the same bits.
TEST_F(NcclTraining, Fp8AllGatherIsBitExact) {
  for (const auto& [precision, stage] : {std::pair{"fp8_tensorwise", 1}, {"fp8_blockwise", 3}, {"nvfp4", 3}}) {
    Setting s{.precision = precision, .shards = 3, .stage = stage, .length = 8};
    const Curve quantized = train(s);
    s.keep_quantized = false;
    EXPECT_EQ(train(s), quantized) << precision;
  }
}

// Quantizes parts of matrices, and rows that are all-gathered first.
TEST_F(NcclTraining, LowPrecisionMatchesOneRankOnTensorAndSequenceParallelRanks) {
  for (const auto& [precision, tensor, context] :
       {std::tuple{"fp8_tensorwise", 2, 1}, {"fp8_delayed", 2, 1}, {"fp8_blockwise", 1, 2}}) {
    Setting s{.precision = precision, .length = 8, .kv_heads = 2};
    const Curve want = train(s, 2);
    s.tensor = tensor, s.context = context, s.sequence = tensor > 1;
    const Curve got = train(s, 2);
    for (size_t i = 0; i < want.losses.size(); ++i) {
      EXPECT_NEAR(got.losses[i], want.losses[i], 2e-3 * want.losses[i]) << s.name() << " step " << i;
      EXPECT_NEAR(got.norms[i], want.norms[i], 0.04 * want.norms[i]) << s.name() << " step " << i;
    }
    s.graphs = s.beside = false;
    EXPECT_EQ(train(s, 2), got) << s.name();
  }
}

// K and V of other ranks are all-gathered, or passed hop by hop, overlapped with attention to the previous ones.
TEST_F(NcclTraining, ContextParallelRanksMatchOneRank) {
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

// Rows are sent to the ranks of their experts and back within captured graphs.
TEST_F(NcclTraining, ExpertParallelRanksMatchOneRank) {
  const Curve want = train({.type = ModelType::dots1, .length = 8, .balance = 1}, 2);
  for (const auto& [replicas, shards, stage] : {std::tuple{1, 2, 1}, {2, 2, 0}, {1, 4, 3}}) {
    Setting s{.type = ModelType::dots1, .replicas = replicas, .shards = shards, .stage = stage, .length = 8};
    s.experts = 2, s.balance = 1;
    expect_same_run(want, s, 1e-5, 2);
  }
}

// The all-reduces of losses, embeddings and GEMMs agree on all ranks of a group; also with sharding and context
// parallelism.
TEST_F(NcclTraining, TensorParallelRanksMatchOneRank) {
  for (const ModelType type : {ModelType::llama, ModelType::gpt2}) {
    const Curve want = train({.type = type, .length = 8, .kv_heads = 2}, 2);
    for (const bool sequence : {false, true})
      for (const auto& [shards, context] : {std::pair{1, 1}, {2, 1}, {1, 2}}) {
        if (sequence == (type == ModelType::gpt2) && shards * context > 1) continue;
        Setting s{.type = type, .shards = shards, .stage = shards > 1 ? 3 : 0, .context = context, .length = 8};
        s.tensor = s.kv_heads = 2, s.sequence = sequence, s.accumulation = context;
        expect_same_run(want, s, 1e-5, 2);
      }
  }
}

// All-reduces that overlap GEMMs or follow them; head sizes for which a GEMM can or cannot fuse RoPE, also with rows
// exchanged in pieces.
TEST_F(NcclTraining, TensorParallelGemmsAreBitExact) {
  for (const bool sequence : {false, true}) {
    Setting s{.precision = "bf16", .shards = 2, .stage = sequence ? 3 : 1, .length = 8};
    s.tensor = s.kv_heads = 2, s.sequence = sequence;
    if (sequence) s.head_dim = 64;
    const Curve captured = train(s);
    EXPECT_EQ(captured, train(s)) << s.name();
    s.graphs = s.beside = false;
    EXPECT_EQ(captured, train(s)) << s.name();
  }
}

#ifdef ATHANOR_EMULATED_GPU
// Checks the communicators of all groups.
TEST_F(NcclTraining, CollectivesUseRegisteredMemory) {
  Setting s{.precision = "bf16", .shards = 2, .stage = 3, .rule = RuleName::normuon, .length = 8};
  s.tensor = s.kv_heads = 2, s.sequence = true;
  const int64_t before = fake().calls_outside_registered_memory();
  (void)train(s, 1);
  EXPECT_EQ(fake().calls_outside_registered_memory(), before);
}
#endif

// Skips each call of a micro-batch once: the embedding, all blocks and the loss, in forward and backward.
TEST_F(NcclTraining, SkippedCallIsDetected) {
  for (const bool sequence : {false, true}) {
    Setting s{.type = ModelType::gpt2, .graphs = false, .length = 8};
    s.sequence = sequence;
    const Curve want = train({.type = s.type, .length = 8}, 2);
    s.tensor = 2;
    const int64_t layers = model(s).num_hidden_layers, calls = sequence ? 40 * layers + 18 : 6 * layers + 4;
    for (s.forgotten = 0; s.forgotten < calls; s.forgotten += sequence ? 13 : 2) {
      const Curve got = train(s, 2);
      bool same = true;  // false if there are NaNs
      for (size_t i = 0; i < got.losses.size(); ++i)
        same = same && std::abs(got.losses[i] / want.losses[i] - 1) < 1e-5 &&
               std::abs(got.norms[i] / want.norms[i] - 1) < 1e-4F;
      EXPECT_FALSE(same) << s.name() << " call " << s.forgotten;
    }
  }
}

// NCCL's max of a number and NaN is the number.
TEST_F(NcclTraining, RankWithoutDataInvalidatesTheStepOfItsGroup) {
  std::atomic<int> skipped{0};
  run(4, [&](Rank& rank, Communicator& hosts) {
    Setting s{.shards = 2, .stage = 1, .length = 8};
    s.tensor = s.kv_heads = 2;
    ProcessMesh mesh(rank.nccl->split(0, rank.nccl->rank()), {.shards = 2, .tensor = 2});
    Engine engine(model(s), options(s), {*rank.cuda.device, *rank.cuda.ops, mesh});
    engine.commit();
    hosts.barrier();
    engine.init_weights();
    accumulate(engine, 0);
    if (mesh.world().rank() == 3) engine.poison_step();
    const StepState state = engine.finish_step();
    skipped += state.skip;
    EXPECT_FALSE(std::isfinite(state.loss));
    rank.quiet(hosts, board_);
  });
  EXPECT_EQ(skipped, 4);
}

TEST_F(NcclTraining, GraphsAreBitExact) {
  for (const auto& [replicas, shards, stage] : layouts()) {
    Setting s{.precision = "bf16", .replicas = replicas, .shards = shards, .stage = stage};
    const Curve captured = train(s);
    s.graphs = false;
    EXPECT_EQ(captured, train(s)) << s.name();
  }
}

TEST_F(NcclTraining, RankInvariantSumsAreBitExactOnAnyRanks) {
  Setting s{.precision = "bf16", .leaves = 4};
  const Curve want = train(s);
  for (const auto& [replicas, shards, stage] : layouts()) {
    s.replicas = replicas, s.shards = shards, s.stage = stage;
    EXPECT_EQ(want, train(s)) << s.name();
  }
}

// Matrices are sent to their owners and updates back on another stream than the GEMMs between.
TEST_F(NcclTraining, WholeMatrixOptimizersAreBitExactOnAnyRanks) {
  Setting s{.precision = "bf16", .leaves = 4, .rule = RuleName::normuon};
  const Curve want = train(s, 2);
  for (const auto& [replicas, shards, stage] : {Layout{1, 4, 2}, Layout{2, 2, 3}}) {
    s.replicas = replicas, s.shards = shards, s.stage = stage;
    s.graphs = replicas == 1;
    EXPECT_EQ(want, train(s, 2)) << s.name();
  }
}

// Parts of a matrix, also from tensor-parallel ranks, are sent over the communicator of all ranks.
TEST_F(NcclTraining, WholeMatrixOptimizersMatchOneRankWithTensorParallelism) {
  Setting s{.rule = RuleName::normuon, .length = 8};
  const Curve want = train(s, 3);
  s.shards = s.tensor = 2, s.stage = 3, s.sequence = true;  // both ranks have the single KV head
  const Curve captured = expect_same_run(want, s, 1e-5, 3);
  s.graphs = false;
  EXPECT_EQ(captured, train(s, 3)) << s.name();
}

TEST_F(NcclTraining, ManyBf16StepsMatchOneRank) {
#ifdef ATHANOR_EMULATED_GPU
  constexpr int64_t kMany = 5;
#else
  constexpr int64_t kMany = 20;
#endif
  const Curve want = train({.precision = "bf16"}, kMany);
  for (const auto& [replicas, shards, stage] : layouts())
    expect_same_run(want, {.precision = "bf16", .replicas = replicas, .shards = shards, .stage = stage}, 5e-3, kMany);
}

// bf16 gradients are sent as such, through planned scratch memory, and are summed on the stream of collectives.
TEST_F(NcclTraining, Bf16GradientsMatchOneRank) {
  const Curve want = train({.precision = "bf16", .gradients = DType::bf16});
  for (const auto& [replicas, shards, stage] : layouts()) {
    Setting s{.precision = "bf16", .replicas = replicas, .shards = shards, .stage = stage, .gradients = DType::bf16};
    s.accumulation = stage == 2 ? 2 : 1;
    const Curve captured = expect_same_run(want, s, 5e-3);
    s.graphs = false;
    EXPECT_EQ(captured, train(s)) << s.name();
  }
  Setting parts{.precision = "bf16", .length = 8, .tensor = 2, .kv_heads = 2, .gradients = DType::bf16};
  const Curve whole = train({.precision = "bf16", .length = 8, .kv_heads = 2, .gradients = DType::bf16});
  expect_same_run(whole, parts, 5e-3);
}

// Other ranks notice in the middle of captured steps; nothing in the engine waits forever.
TEST_F(NcclTraining, FailedRankEndsTheRunOfAll) {
  std::atomic<int> lost{0};
  EXPECT_THROW(run(3,
                   [&](Rank& rank, Communicator&) {
                     const int me = rank.nccl->rank();
                     ProcessMesh mesh(rank.nccl->split(0, me), {.shards = 3});
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
