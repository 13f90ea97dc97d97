// FP8 and FP4 recipes: the laws of training hold, the loss curve stays near bf16's, backward keeps quantized inputs,
// non-finite values skip a step, and layers with unsuitable sizes stay in 16 bits.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "base/rng.h"
#include "cpu/isa.h"
#include "infer/sampler.h"
#include "perf/described_gpu.h"
#include "tests/tiny_model.h"
#include "tests/train/curve.h"
#include "tests/train/ranks_rig.h"
#include "tests/train/transposing_ops.h"
#include "train/setup.h"

namespace athanor::fp8 {
namespace {

using testing::Curve;
using testing::Rig;
constexpr int64_t kLength = 16, kSequences = 4, kVocab = 67;
const std::string kRecipes[] = {"fp8_tensorwise", "fp8_delayed", "fp8_rowwise", "fp8_rowwise_gw_hp",
                                "fp8_blockwise",  "mxfp8",       "nvfp4"};

ModelConfig tiny(ModelType type) {
  return testing::tiny_model(type, {.vocab = kVocab,
                                    .hidden = 32,
                                    .layers = 3,
                                    .heads = 4,
                                    .kv_heads = 2,
                                    .intermediate = 144,  // more than a block of 128
                                    .positions = kLength});
}

struct Setting {
  std::string precision = "fp8_tensorwise";
  Recompute recompute = {};
  int threads = 2;
  HighLayers high = {};
  GradientFormat gradients = GradientFormat::automatic;
  bool power_of_two = false;
  int64_t length = kLength;
  bool quantized = false;
  bool keep_quantized = true;
};

EngineOptions options(const Setting& s) {
  EngineOptions o;
  o.recipe = make_recipe(s.precision, DType::f32, s.gradients);
  o.recipe.power_of_two = o.recipe.power_of_two || s.power_of_two;
  o.high_layers = s.high;
  o.recompute = s.recompute;
  o.quantized = s.quantized;
  o.keep_quantized = s.keep_quantized;
  o.seq_length = s.length;
  o.micro_batch_size = o.global_batch_size = kSequences;
  o.seed = o.optimizer.seed = 7;
  o.schedule = {.style = DecayStyle::constant, .lr = 3e-3, .min_lr = 3e-3};
  o.clip_grad = 1;
  return o;
}

// A step on a sequence that can be learned: each token determines the next.
void accumulate(Engine& engine, int64_t step) {
  std::vector<int32_t> tokens, targets;
  for (int64_t i = 0; i < kSequences * engine.options().seq_length; ++i) {
    const auto token = int32_t(random_bits(3, stream_of("tokens"), uint64_t(step * 64 + i)) % kVocab);
    tokens.push_back(token), targets.push_back(token * 7 % kVocab);
  }
  PhaseClock clock;
  engine.micro_batch(tokens, targets, clock);
}

Curve train(ModelType type, const Setting& s, int64_t steps = 3) {
  Rig rig(s.threads);
  Engine engine(tiny(type), options(s), rig.backend());
  return curve_of(rig, engine, steps, accumulate);
}

std::string line_of(const Setting& s, ModelType type = ModelType::llama) {
  Rig rig;
  return Engine(tiny(type), options(s), rig.backend()).low_precision();
}

class LowPrecision : public ::testing::TestWithParam<std::string> {};

TEST_P(LowPrecision, IsBitExactForAnyThreadsAndRecomputation) {
  using G = Recompute::Granularity;
  for (const ModelType type : {ModelType::gpt2, ModelType::llama}) {
    Setting s{.precision = GetParam()};
    const Curve want = train(type, s);
    EXPECT_EQ(want, train(type, s));
    for (const int threads : {1, 3}) {
      s.threads = threads;
      EXPECT_EQ(want, train(type, s)) << threads << " threads";
    }
    for (const Recompute r : {Recompute{G::selective, 1}, Recompute{G::full, 1}, Recompute{G::full, 2}}) {
      s.recompute = r;
      EXPECT_EQ(want, train(type, s)) << name_of(type) << " recompute " << to_text(r);
    }
  }
}

TEST_P(LowPrecision, FollowsTheBf16LossCurve) {
  for (const ModelType type : {ModelType::gpt2, ModelType::qwen3}) {
    const Curve want = train(type, {.precision = "bf16"}, 12), got = train(type, {.precision = GetParam()}, 12);
    EXPECT_NE(want.weights, got.weights);
    EXPECT_LT(want.losses.back(), 0.99 * want.losses.front());
    for (size_t i = 0; i < want.losses.size(); ++i)
      EXPECT_NEAR(got.losses[i], want.losses[i], 5e-3 * want.losses[i]) << name_of(type) << " step " << i;
  }
}

// Inputs that backward needs quantized are kept quantized; those it needs in 16 bits cost as much as with bf16.
TEST_P(LowPrecision, KeepsQuantizedInputsForBackward) {
  if (GetParam() == "fp8_rowwise_gw_hp") return;
  for (const ModelType type : {ModelType::gpt2, ModelType::llama})
    EXPECT_LT(train(type, {.precision = GetParam()}, 0).activations, train(type, {.precision = "bf16"}, 0).activations)
        << name_of(type);
}

// An infinite weight, or an activation that overflows, must not become the maximum quantized value.
TEST_P(LowPrecision, NonFiniteValuesSkipTheStep) {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(), 3e38f}) {
    Rig rig;
    Engine engine(tiny(ModelType::gpt2), options({.precision = GetParam()}), rig.backend());
    engine.commit();
    engine.init_weights();
    const Tensor& master = engine.model().params().units()[2]->master;
    for (int64_t i = 0; i < 300; ++i) rig.write(master, i, bad);
    engine.refresh_values();
    accumulate(engine, 0);
    const StepState state = engine.finish_step();
    EXPECT_EQ(state.skip, 1) << bad;
    EXPECT_EQ(state.updates, 0) << bad;
  }
}

// Statistics change neither bits nor launches. With current scaling nothing saturates.
TEST_P(LowPrecision, StatisticsAreCountedAndChangeNothing) {
  for (const ModelType type : {ModelType::gpt2, ModelType::llama}) {
    EXPECT_EQ(train(type, {.precision = GetParam()}), train(type, {.precision = GetParam(), .quantized = true}));
    Rig rig;
    Engine without(tiny(type), options({.precision = GetParam()}), rig.backend()),
        with(tiny(type), options({.precision = GetParam(), .quantized = true}), rig.backend());
    without.memory(), with.memory();
    EXPECT_EQ(without.micro_launches().size(), with.micro_launches().size());
    EXPECT_EQ(without.memory().total(MemoryKind::activations), with.memory().total(MemoryKind::activations));
    without.commit(), with.commit();
    EXPECT_TRUE(without.take_quantized().empty());
    with.init_weights();
    for (int64_t step = 0; step < 2; ++step) accumulate(with, step), with.finish_step();
    double underflowed = 0;
    std::set<int> seen;
    for (const QuantizedOperand& q : with.take_quantized()) {
      seen.insert(q.parameter.id);
      const ParamSpec& spec = with.model().params().spec(q.parameter);
      EXPECT_TRUE(spec.low_precision);
      EXPECT_TRUE(q.statistics.amax > 0 && std::isfinite(q.statistics.amax)) << spec.name;
      if (GetParam() != "fp8_delayed") {
        EXPECT_EQ(q.statistics.saturated, 0) << spec.name;
      }
      if (q.operand == Operand::forward_w) {
        EXPECT_EQ(q.statistics.values, 2 * double(spec.shape.numel())) << spec.name;
      }
      underflowed += q.statistics.underflowed;
    }
    EXPECT_GT(underflowed, 0);
    EXPECT_EQ(seen.size(), 12u);
    EXPECT_TRUE(with.take_quantized().empty()) << "counts begin anew";
  }
}

// Weights are quantized once per step, which costs memory and saves only launches in micro-batches.
TEST_P(LowPrecision, CachedQuantizedWeightsMatchRequantizedOnes) {
  for (const ModelType type : {ModelType::gpt2, ModelType::llama}) {
    const Setting kept{.precision = GetParam()}, made{.precision = GetParam(), .keep_quantized = false};
    const auto two_micro_batches = [](Engine& engine, int64_t step) {
      accumulate(engine, 2 * step);
      if (step == 2) engine.discard_step(), accumulate(engine, 2 * step);
      accumulate(engine, 2 * step + 1);
    };
    std::vector<Curve> curves;
    std::vector<size_t> launches, weights;
    for (const Setting& s : {kept, made}) {
      Rig rig;
      Engine engine(tiny(type), options(s), rig.backend());
      curves.push_back(curve_of(rig, engine, 4, two_micro_batches));
      launches.push_back(engine.micro_launches().size());
      weights.push_back(engine.memory().total(MemoryKind::weights));
    }
    EXPECT_EQ(curves[0], curves[1]) << name_of(type);
    const size_t twice = 2 * 12;  // in forward and in backward
    EXPECT_EQ(launches[1] - launches[0], twice) << name_of(type);
    EXPECT_GT(weights[0], weights[1]) << name_of(type);
    EXPECT_LE(curves[0].activations, curves[1].activations) << name_of(type);
  }
}

// Transposed values written by the quantize kernel match those that the GEMM would transpose; only with f32 scales that
// each belong to one operand.
TEST_P(LowPrecision, TransposedQuantizedValuesAreBitExact) {
  using G = Recompute::Granularity;
  for (const ModelType type : {ModelType::gpt2, ModelType::llama})
    for (const G granularity : {G::none, G::selective}) {
      std::vector<Curve> curves;
      std::vector<size_t> launches;
      int64_t transposed = 0;
      for (const bool transposes : {false, true}) {
        Rig rig;
        Backend backend = rig.backend();
        testing::TransposingOps ops(backend.ops, transposes);
        const Setting s{.precision = GetParam(), .recompute = {granularity, 1}, .quantized = true};
        Engine engine(tiny(type), options(s), {backend.device, ops, backend.mesh});
        curves.push_back(curve_of(rig, engine, 2, accumulate));
        launches.push_back(engine.micro_launches().size());
        transposed += ops.transposed;
      }
      EXPECT_EQ(curves[0], curves[1]) << name_of(type) << " " << int(granularity);
      EXPECT_EQ(launches[0] > launches[1], GetParam() == "fp8_blockwise" || GetParam() == "fp8_rowwise")
          << "both codes in one op";
      EXPECT_EQ(transposed > 0, GetParam() != "mxfp8" && GetParam() != "nvfp4");
    }
}

using Counts = std::map<std::pair<int, Operand>, std::array<double, 4>>;
Counts counts_of(Engine& engine) {
  Counts counts;
  for (const QuantizedOperand& q : engine.take_quantized())
    counts[{q.parameter.id, q.operand}] = {q.statistics.values, q.statistics.saturated, q.statistics.underflowed,
                                           q.statistics.amax};
  return counts;
}

TEST_P(LowPrecision, RecomputedBlocksCountEachQuantizedValueOnce) {
  using G = Recompute::Granularity;
  for (const ModelType type : {ModelType::gpt2, ModelType::llama}) {
    std::vector<Counts> counts;
    for (const Recompute recompute : {Recompute{G::none, 1}, Recompute{G::full, 1}}) {
      Rig rig;
      Engine engine(tiny(type), options({.precision = GetParam(), .recompute = recompute, .quantized = true}),
                    rig.backend());
      engine.commit();
      engine.init_weights();
      accumulate(engine, 0);
      counts.push_back(counts_of(engine));
    }
    for (const auto& [operand, each] : counts[0]) EXPECT_EQ(counts[1].at(operand), each) << name_of(type);
  }
}

// Evaluations use quantized averages; afterwards the weights are quantized again.
TEST(LowPrecisionWeights, EvaluationsQuantizeTheAverages) {
  std::vector<double> losses[2];
  for (const bool keep : {false, true}) {
    Rig rig;
    EngineOptions o = options({.keep_quantized = keep});
    o.optimizer.ema_decay = 0.9;
    o.eval_averages = true;
    Engine engine(tiny(ModelType::llama), o, rig.backend());
    engine.commit();
    engine.init_weights();
    const std::vector<int32_t> tokens(size_t(kSequences * kLength), 3);
    for (int64_t step = 0; step < 3; ++step) {
      accumulate(engine, step);
      losses[keep].push_back(engine.finish_step().loss);
      losses[keep].push_back(engine.evaluate(tokens, tokens));
      engine.use_averages();
      losses[keep].push_back(engine.evaluate(tokens, tokens));
      engine.use_weights();
    }
    EXPECT_NE(losses[keep][7], losses[keep][8]);
  }
  EXPECT_EQ(losses[false], losses[true]);
}

// All gradients are zero: scales of all-zero blocks do no harm.
TEST_P(LowPrecision, StepWithoutTargetsIsFinite) {
  Rig rig;
  Engine engine(tiny(ModelType::llama), options({.precision = GetParam()}), rig.backend());
  engine.commit();
  engine.init_weights();
  const std::vector<int32_t> tokens(size_t(kSequences * kLength), 3), none(tokens.size(), -1);
  PhaseClock clock;
  engine.micro_batch(tokens, none, clock);
  const StepState state = engine.finish_step();
  EXPECT_EQ(state.loss, 0);
  EXPECT_EQ(state.grad_norm, 0);
}

// With fp8.lm_head the head's GEMMs are quantized, too, tied or not, and the loss curve stays close.
TEST_P(LowPrecision, QuantizedHeadFollowsTheLossCurve) {
  for (const bool tied : {false, true}) {
    ModelConfig m = tiny(ModelType::llama);
    m.tie_word_embeddings = tied;
    m.max_position_embeddings = 96;
    const auto run = [&](Setting s, int64_t chunk = 0) {
      s.length = 96;
      Rig rig(s.threads);
      EngineOptions o = options(s);
      o.loss_chunk_rows = chunk;
      Engine engine(m, o, rig.backend());
      const Curve curve = curve_of(rig, engine, 4, accumulate);
      EXPECT_EQ(engine.options().loss_chunk_rows % 128, 0);
      if (chunk > 0) {
        EXPECT_EQ(engine.options().loss_chunk_rows, round_up<int64_t>(chunk, 128));
      }
      const int head = engine.model().head().id;
      int64_t counted = 0;
      for (const QuantizedOperand& q : engine.take_quantized()) counted += q.parameter.id == head;
      EXPECT_EQ(counted > 0, s.quantized && !s.high.head);
      return curve;
    };
    Setting s{.precision = GetParam(), .high = {.head = false}, .quantized = true};
    const Curve head = run(s), bf16 = run({.precision = "bf16"}, 384);
    EXPECT_NE(head.weights, run({.precision = GetParam()}, 384).weights);
    for (size_t i = 0; i < head.losses.size(); ++i)
      EXPECT_NEAR(head.losses[i], bf16.losses[i], 1e-2 * bf16.losses[i]) << "step " << i;
    const Curve chunks = run(s, 100);
    for (size_t i = 0; i < head.losses.size(); ++i)
      EXPECT_NEAR(chunks.losses[i], head.losses[i], 1e-2 * head.losses[i]) << "step " << i;
    // Weight gradients in bf16 are sums over tokens, which AMX adds in one order however they are cut into chunks.
    if (s.precision != "fp8_rowwise_gw_hp" || isa() != Isa::amx_bf16) {
      EXPECT_NE(chunks.weights, head.weights);
    }
    Setting same = s;
    same.recompute = {Recompute::Granularity::full, 1}, same.threads = 1;
    EXPECT_EQ(head, run(same));
    same.keep_quantized = false;
    EXPECT_EQ(head, run(same));
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, LowPrecision, ::testing::ValuesIn(kRecipes),
                         [](const auto& which) { return which.param; });

TEST(LowPrecisionOptions, ChangeBitsButNotTheLossCurve) {
  const Curve bf16 = train(ModelType::llama, {.precision = "bf16"}, 6);
  std::vector<Curve> all{train(ModelType::llama, {}, 6)};
  for (const Setting& s :
       {Setting{.gradients = GradientFormat::e4m3}, Setting{.power_of_two = true}, Setting{.high = {.first = 1}},
        Setting{.high = {.last = 1}}, Setting{.high = {.match = {"*down_proj*"}}}}) {
    all.push_back(train(ModelType::llama, s, 6));
    for (size_t i = 0; i < 6; ++i) EXPECT_NEAR(all.back().losses[i], bf16.losses[i], 5e-3 * bf16.losses[i]);
    for (size_t i = 0; i + 1 < all.size(); ++i) EXPECT_NE(all[i].weights, all.back().weights) << i;
  }
  EXPECT_EQ(all[0], train(ModelType::llama, {.gradients = GradientFormat::e5m2}, 6));  // the default
}

TEST(LowPrecisionOptions, ReportLayersThatStayIn16Bits) {
  EXPECT_EQ(line_of({.precision = "bf16"}), "");
  EXPECT_EQ(line_of({}), "fp8_tensorwise: 12 of 12 linear layers in 8 bits");
  EXPECT_EQ(line_of({.high = {.head = false}}), "fp8_tensorwise: 12 of 12 linear layers in 8 bits; the head, too");
  EXPECT_EQ(line_of({.high = {.first = 1, .last = 1, .match = {"*.o_proj.weight", "*.q_proj.weight"}}}),
            "fp8_tensorwise: 2 of 12 linear layers in 8 bits; 8 in bf16, of the first and last blocks; 2 in bf16, by "
            "fp8.exclude");
  EXPECT_EQ(line_of({.precision = "nvfp4", .high = {.last = 1}}),
            "nvfp4: 8 of 12 linear layers in 4 bits; 4 in bf16, of the first and last blocks");
  EXPECT_EQ(line_of({.length = 15}),
            "fp8_tensorwise: 12 of 12 linear layers in 8 bits; gradients of weights in bf16: the 60 tokens of a "
            "micro-batch are no multiple of 16");
  const auto refusal = [](const HighLayers& high) -> std::string {
    try {
      return line_of({.high = high});
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Exit::usage);
      return e.what();
    }
  };
  EXPECT_EQ(refusal({.least = 33}),
            "precision: fp8_tensorwise leaves none of the 12 linear layers in 8 bits; 12 in bf16, below fp8.min_size; "
            "use precision bf16");
  EXPECT_EQ(refusal({.match = {"*.lm_head.*"}}),
            "fp8.exclude: \"*.lm_head.*\" matches no linear layer of a block, such as "
            "model.layers.0.self_attn.q_proj.weight; * stands for any text");
}

TEST(LowPrecisionOptions, UnalignedAndSmallSizesStayIn16Bits) {
  ModelConfig m = tiny(ModelType::llama);
  m.intermediate_size = 40;  // gate and up: 80 outputs; down: 40 inputs
  Rig rig;
  EXPECT_EQ(Engine(m, options({}), rig.backend()).low_precision(),
            "fp8_tensorwise: 9 of 12 linear layers in 8 bits; 3 in bf16, of sizes that are no multiple of 16");
  m.intermediate_size = 16;
  EXPECT_EQ(Engine(m, options({.high = {.least = 32}}), rig.backend()).low_precision(),
            "fp8_tensorwise: 9 of 12 linear layers in 8 bits; 3 in bf16, below fp8.min_size");
}

// A mixture's attention, dense and shared layers are quantized; the GEMMs of its experts and routers are not.
TEST(LowPrecisionOptions, ExpertsAndRoutersStayIn16Bits) {
  EXPECT_EQ(line_of({}, ModelType::dots1),
            "fp8_tensorwise: 12 of 12 linear layers in 8 bits; experts and routers in bf16");
  for (const ModelType type : {ModelType::dots1, ModelType::mixtral}) {
    const Curve bf16 = train(type, {.precision = "bf16"}, 6);
    for (const char* precision : {"fp8_delayed", "fp8_blockwise", "nvfp4"}) {
      Setting s{.precision = precision};
      const Curve got = train(type, s, 6);
      EXPECT_NE(bf16.weights, got.weights);
      for (size_t i = 0; i < got.losses.size(); ++i)
        EXPECT_NEAR(got.losses[i], bf16.losses[i], 5e-3 * bf16.losses[i]) << precision << " step " << i;
      s.recompute = {Recompute::Granularity::full, 1};
      EXPECT_EQ(got, train(type, s, 6)) << name_of(type) << " recomputes, " << precision;
    }
  }
  Rig rig;
  const Engine engine(tiny(ModelType::dots1), options({}), rig.backend());
  for (const ParamSpec& spec : engine.model().params().specs())
    EXPECT_FALSE(spec.low_precision && (spec.experts > 1 || spec.name.ends_with(".gate"))) << spec.name;
}

TEST(LowPrecisionOptions, AreRefusedWithoutAnyQuantizedGemm) {
  const auto refusal = [](const auto& make) -> std::string {
    try {
      make();
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Exit::usage);
      return e.what();
    }
    return "accepted";
  };
  Rig rig;
  const Recipe recipe = make_recipe("mxfp8", DType::f32);
  EXPECT_NE(refusal([&] {
              Sampler(tiny(ModelType::gpt2), recipe, rig.backend(), kLength);
            }).find("mxfp8 is not supported for generating text; use bf16"),
            std::string::npos);
}

// What a GPU multiplies natively depends on its compute capability and the recipe; `plan --gpu` reports it, too.
TEST(LowPrecisionOptions, ReportNativeOrEmulatedGemmsPerGpu) {
  const auto how = [](const char* name, const char* precision, int64_t intermediate = 160) {
    ModelConfig model = tiny(ModelType::llama);
    model.intermediate_size = intermediate;
    DescribedBackend gpu = describe(find_gpu(name));
    ProcessMesh mesh(make_single(*gpu.device), {});
    Engine engine(model, options({.precision = precision}), {*gpu.device, *gpu.ops, mesh, gpu.tuning});
    engine.memory();
    return gpu.tuning->describe_quantized(engine.tunable());
  };
  for (const char* precision : {"fp8_tensorwise", "fp8_delayed", "fp8_rowwise", "fp8_rowwise_gw_hp", "fp8_blockwise"}) {
    EXPECT_EQ(how("h200", precision), "the GPU multiplies quantized values") << precision;
    EXPECT_EQ(how("a100", precision).find("emulated: a GPU of compute capability 8.0"), 0U) << precision;
  }
  for (const char* precision : {"fp8_tensorwise", "mxfp8", "nvfp4"})
    EXPECT_EQ(how("b200", precision), "the GPU multiplies quantized values") << precision;
  for (const char* precision : {"mxfp8", "nvfp4"})  // 144 is not a multiple of 32
    EXPECT_EQ(how("b200", precision, 144).find("6 of 48 GEMMs emulated: "), 0U) << precision;
  EXPECT_EQ(how("b200", "fp8_rowwise").find("emulated"), 0U);
  for (const char* precision : {"mxfp8", "nvfp4"}) EXPECT_EQ(how("h200", precision).find("emulated"), 0U) << precision;
  EXPECT_EQ(how("h200", "bf16"), "");
}

// Scales of activations are per micro-batch of a rank, scales of weights are per whole weight: ranks that compute the
// same micro-batches as one rank get the same quantized values.
TEST(LowPrecisionRanks, SameMicroBatchesGiveTheSameQuantizedValues) {
  for (const char* precision : {"fp8_tensorwise", "fp8_delayed", "fp8_blockwise"})
    for (const int stage : {0, 3}) {
      ranks::Setting one{.precision = precision, .accumulation = 2}, two{.precision = precision, .stage = stage};
      (stage ? two.shards : two.replicas) = 2;
      ranks::expect_same(ranks::train(one), ranks::train(two), 2e-3, two.name());
    }
}

// Weights, which are equal on all ranks, are counted once; activations belong to each rank's own micro-batches.
TEST(LowPrecisionRanks, StatisticsCoverAllRanks) {
  std::map<int, Counts> by_ranks;
  for (const int count : {1, 2, 4}) {
    const ranks::Setting s{.precision = "fp8_tensorwise", .replicas = count, .accumulation = 4 / count};
    std::mutex mutex;
    run_ranks(count, [&](std::unique_ptr<Communicator> world) {
      const CpuBackend cpu = make_cpu({.threads = 1});
      ProcessMesh mesh(std::move(world), s.mesh());
      EngineOptions o = ranks::options(s);
      o.quantized = true;
      Engine engine(ranks::tiny(s), o, {*cpu.device, *cpu.ops, mesh, nullptr, &mesh.world()});
      engine.commit();
      engine.init_weights();
      ranks::accumulate(engine, 0);
      const Counts mine = counts_of(engine);
      EXPECT_FALSE(mine.empty());
      engine.finish_step();
      for (const QuantizedOperand& q : engine.take_quantized()) {
        EXPECT_EQ(q.operand, Operand::forward_w) << "made after the update";
        EXPECT_EQ(q.statistics.values, double(engine.model().params().spec(q.parameter).shape.numel()));
      }
      const std::lock_guard lock(mutex);
      const auto [place, first] = by_ranks.emplace(count, mine);
      EXPECT_EQ(place->second, mine) << "all ranks get the sums";
    });
    EXPECT_EQ(by_ranks[1], by_ranks[count]) << count;
  }
}

TEST(LowPrecisionRanks, RankInvariantSumsAreBitExactOnAnyRanks) {
  for (const char* precision : {"mxfp8", "nvfp4", "fp8_delayed"}) {
    ranks::Setting one{.precision = precision, .leaves = 4}, two = one;
    two.shards = 2, two.stage = 1;
    ranks::expect_equal(ranks::train(one), ranks::train(two), two.name());
  }
}

}  // namespace
}  // namespace athanor::fp8
