// The single law, on one rank: losses and weights are a function of config, seed and data, bit for bit, whatever the
// recomputation, the number of threads or the repetition; micro-batching changes only the order of sums.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "base/rng.h"
#include "tests/tiny_model.h"
#include "tests/train/curve.h"
#include "train/setup.h"

namespace athanor {
namespace {

using testing::Curve;
using testing::Rig;
using testing::weights_of;

ModelConfig tiny(ModelType type) {
  ModelConfig m = testing::tiny_model(
      type, {.vocab = 67, .hidden = 24, .layers = 3, .heads = 4, .kv_heads = 2, .intermediate = 40, .positions = 20});
  if (type == ModelType::mistral) m.sliding_window = 5;
  return m;
}

struct Setting {
  const char* precision = "fp32";
  DType master = DType::f32;
  Recompute recompute;
  int64_t micro = 4;
  int threads = 2;
  int64_t chunk_rows = 0;
  DType m = DType::f32, v = DType::f32;
  DType gradients = DType::f32;
};

EngineOptions options(const Setting& s) {
  EngineOptions o;
  o.recipe = make_recipe(s.precision, s.master);
  o.recipe.gradients = s.gradients;
  o.recompute = s.recompute;
  o.seq_length = 17;
  o.micro_batch_size = s.micro;
  o.global_batch_size = 4;
  o.loss_chunk_rows = s.chunk_rows;
  o.seed = 7;
  o.optimizer.seed = 7;
  o.optimizer.m = s.m, o.optimizer.v = s.v;
  o.schedule = {.style = DecayStyle::constant, .lr = 3e-3, .min_lr = 3e-3};
  o.clip_grad = 1;
  if (o.recipe.loss_scaling) {
    o.scaling = {.dynamic = true, .window = 3, .hysteresis = 1, .min_scale = 1};
    o.loss_scale = 1024;
  }
  return o;
}

std::vector<int32_t> stream(int64_t n, int64_t vocab, const char* name) {
  std::vector<int32_t> t(static_cast<size_t>(n));
  for (size_t i = 0; i < t.size(); ++i) t[i] = int32_t(random_bits(3, stream_of(name), i) % uint64_t(vocab));
  return t;
}

void accumulate(Engine& engine, int64_t step) {
  const int64_t n = 4 * 17, per = engine.options().micro_batch_size * 17;
  const auto tokens = stream(n * 8, 67, "tokens"), targets = stream(n * 8, 67, "targets");
  PhaseClock clock;
  for (int64_t at = 0; at < n; at += per)
    engine.micro_batch(std::span(tokens).subspan(size_t(step * n + at), size_t(per)),
                       std::span(targets).subspan(size_t(step * n + at), size_t(per)), clock);
}

Curve train(const ModelConfig& model, const Setting& s, int64_t steps = 4) {
  Rig rig(s.threads);
  Engine engine(model, options(s), rig.backend());
  return curve_of(rig, engine, steps, accumulate);
}
Curve train(ModelType type, const Setting& s, int64_t steps = 4) { return train(tiny(type), s, steps); }

struct Case {
  ModelType type;
  const char* precision;
  DType master;
  DType gradients = DType::f32;
};
class Laws : public ::testing::TestWithParam<Case> {
 protected:
  Setting setting() const {
    return {.precision = GetParam().precision,
            .master = GetParam().master,
            .recompute = {},
            .gradients = GetParam().gradients};
  }
};

TEST_P(Laws, TrainsAndIsDeterministic) {
  const Curve a = train(GetParam().type, setting(), 8), b = train(GetParam().type, setting(), 8);
  EXPECT_EQ(a, b);
  EXPECT_NEAR(a.losses[0] / 68, std::log(67.0), 0.05);  // nothing is learned yet: uniform predictions
  for (const double loss : a.losses) EXPECT_TRUE(std::isfinite(loss));
}

TEST_P(Laws, RecomputationIsBitExact) {
  using G = Recompute::Granularity;
  const Curve none = train(GetParam().type, setting());
  for (const Recompute r : {Recompute{G::selective, 1}, Recompute{G::full, 1}, Recompute{G::full, 2}}) {
    Setting s = setting();
    s.recompute = r;
    const Curve again = train(GetParam().type, s);
    EXPECT_EQ(none, again) << int(r.granularity) << " every " << r.every;
    EXPECT_LT(again.activations, none.activations);
  }
}

TEST_P(Laws, ThreadCountIsBitExact) {
  Setting s = setting();
  s.threads = 1;
  const Curve one = train(GetParam().type, s, 3);
  for (const int threads : testing::kThreadCounts) {
    s.threads = threads;
    EXPECT_EQ(one, train(GetParam().type, s, 3)) << threads << " threads";
  }
}

TEST_P(Laws, MicroBatchesChangeOnlyRounding) {
  Setting s = setting();
  const Curve whole = train(GetParam().type, s, 3);
  s.micro = 1;
  const Curve parts = train(GetParam().type, s, 3);
  const double tolerance = std::string(GetParam().precision) == "fp32" ? 1e-5 : 1e-2;
  for (size_t i = 0; i < whole.losses.size(); ++i)
    EXPECT_NEAR(whole.losses[i], parts.losses[i], tolerance * whole.losses[i]);
}

INSTANTIATE_TEST_SUITE_P(
    Families, Laws,
    ::testing::Values(Case{ModelType::gpt2, "fp32", DType::f32}, Case{ModelType::gpt2, "tf32", DType::f32},
                      Case{ModelType::gpt2, "bf16", DType::f32}, Case{ModelType::gpt2, "bf16", DType::bf16},
                      Case{ModelType::llama, "bf16", DType::i16}, Case{ModelType::gpt2, "fp16", DType::f32},
                      Case{ModelType::llama, "fp32", DType::f32}, Case{ModelType::llama, "bf16", DType::f32},
                      Case{ModelType::qwen3, "bf16", DType::f32}, Case{ModelType::qwen2, "fp16", DType::f32},
                      Case{ModelType::mistral, "fp32", DType::f32}, Case{ModelType::mixtral, "fp32", DType::f32},
                      Case{ModelType::qwen3_moe, "bf16", DType::i16}, Case{ModelType::olmoe, "fp16", DType::f32},
                      Case{ModelType::dots1, "bf16", DType::bf16}, Case{ModelType::qwen2_moe, "bf16", DType::f32},
                      Case{ModelType::deepseek_v3, "bf16", DType::i16}, Case{ModelType::gpt_oss, "bf16", DType::f32},
                      Case{ModelType::gpt2, "bf16", DType::f32, DType::bf16},
                      Case{ModelType::qwen3, "bf16", DType::i16, DType::bf16}),
    [](const auto& which) {
      return std::string(name_of(which.param.type)) + "_" + which.param.precision + "_" + name_of(which.param.master) +
             (which.param.gradients == DType::bf16 ? "_gradients_bf16" : "");
    });

// Every combination of family, precision, micro-batch size, recomputation and number of threads: the last two change no
// bit. Runs a sample of the combinations; all with ATHANOR_FULL=1 (scripts/test.sh --all).
TEST(Matrix, RecomputationAndThreadsAreBitExact) {
  using G = Recompute::Granularity;
  const int every = testing::every_case(testing::kMatrixEvery);
  const Case precisions[] = {{ModelType::gpt2, "fp32", DType::f32},
                             {ModelType::gpt2, "tf32", DType::f32},
                             {ModelType::gpt2, "bf16", DType::f32},
                             {ModelType::gpt2, "bf16", DType::bf16},
                             {ModelType::gpt2, "fp16", DType::f32}};
  const Recompute modes[] = {{}, {G::selective, 1}, {G::full, 1}, {G::full, 2}, {G::full, 3}};
  int at = 0;
  for (const ModelType type : {ModelType::gpt2, ModelType::llama, ModelType::qwen2, ModelType::qwen3,
                               ModelType::mistral, ModelType::qwen3_moe, ModelType::athanor})
    for (const Case& p : precisions)
      for (const int64_t micro : {1, 2, 4})
        for (const Recompute& mode : modes)
          for (const int threads : {1, 2, 5}) {
            if (at++ % every != 0) continue;
            Setting plain{.precision = p.precision, .master = p.master, .recompute = {}, .micro = micro};
            Setting other = plain;
            other.recompute = mode;
            other.threads = threads;
            EXPECT_EQ(train(type, plain, 2), train(type, other, 2))
                << name_of(type) << " " << p.precision << " micro " << micro << " recompute " << int(mode.granularity)
                << " every " << mode.every << " threads " << threads;
          }
}

// Sparse attention with a group as long as the sequences of 17 tokens is full attention.
TEST(SparseAttention, OneGroupMatchesFullAttentionBitExactly) {
  const auto curve = [](LayerType type, int64_t local_blocks) {
    ModelConfig m = tiny(ModelType::athanor);
    m.layer_types.assign(3, type), m.sparse_block_size = 6, m.sparse_local_blocks = local_blocks;
    return train(m, {.recompute = {}}, 2);
  };
  const Curve full = curve(LayerType::full_attention, 3);
  EXPECT_EQ(full, curve(LayerType::sparse_attention, 3));
  EXPECT_NE(full.weights, curve(LayerType::sparse_attention, 2).weights);
}

TEST(Precisions, MasterWeightsHaveTheConfiguredDtype) {
  const auto bytes_of_masters = [](DType master) {
    Rig rig;
    Engine engine(tiny(ModelType::gpt2), options({.precision = "bf16", .master = master, .recompute = {}}),
                  rig.backend());
    return engine.memory().total(MemoryKind::masters);
  };
  EXPECT_NEAR(double(bytes_of_masters(DType::f32)) / double(bytes_of_masters(DType::bf16)), 2.0, 0.05);
}

// Split master weights store f32 master weights differently: bit-identical losses, norms, weights and master weights,
// at half the memory.
TEST(Precisions, SplitMastersMatchF32Masters) {
  std::vector<std::vector<float>> masters;
  std::vector<std::vector<double>> losses;
  std::vector<size_t> bytes;
  for (const DType master : {DType::f32, DType::i16}) {
    Rig rig;
    EngineOptions o = options({.precision = "bf16", .master = master, .recompute = {}});
    o.frozen = {"mlp"};
    Engine engine(tiny(ModelType::llama), o, rig.backend());
    engine.commit();
    engine.init_weights();
    masters.push_back(testing::all_masters(engine, *rig.device));
    for (int64_t step = 0; step < 8; ++step) {
      accumulate(engine, step);
      const StepState state = engine.finish_step();
      losses.push_back({state.loss, state.grad_norm});
    }
    masters.push_back(testing::all_masters(engine, *rig.device));
    for (const auto& unit : engine.model().params().units())
      for (const uint16_t w : rig.read<uint16_t>(unit->value)) masters.back().push_back(float(w));
    bytes.push_back(engine.memory().total(MemoryKind::masters));
  }
  EXPECT_EQ(masters[2], masters[0]);
  EXPECT_EQ(masters[3], masters[1]);
  EXPECT_NE(masters[1], masters[0]);
  EXPECT_EQ(std::vector(losses.begin(), losses.begin() + 8), std::vector(losses.begin() + 8, losses.end()));
  EXPECT_NEAR(double(bytes[0]) / double(bytes[1]), 2.0, 0.05);
}

TEST(Precisions, SplitMastersRequireBf16Weights) {
  for (const char* precision : {"fp32", "tf32", "fp16"}) {
    try {
      make_recipe(precision, DType::i16);
      FAIL() << precision;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Exit::usage);
      EXPECT_NE(std::string(e.what()).find("split masters need precision bf16 or a low precision"), std::string::npos)
          << e.what();
    }
  }
}

// Moments in bf16 take half the memory and keep the loss curve.
TEST(Precisions, Bf16MomentsFollowTheSameLossCurve) {
  constexpr int64_t kSteps = 8;
  Setting s{.precision = "bf16", .master = DType::i16, .recompute = {}};
  const Curve exact = train(ModelType::llama, s, kSteps);
  for (const auto& [m, v] : {std::pair{DType::bf16, DType::f32}, {DType::bf16, DType::bf16}}) {
    s.m = m, s.v = v;
    const Curve rounded = train(ModelType::llama, s, kSteps), again = train(ModelType::llama, s, kSteps);
    EXPECT_EQ(rounded, again);
    EXPECT_NE(rounded.weights, exact.weights);
    for (size_t i = 0; i < kSteps; ++i)
      EXPECT_NEAR(rounded.losses[i], exact.losses[i], 2e-3 * exact.losses[i]) << "step " << i;
  }
}

// Gradients in bf16 take half the memory and keep the loss curve; they are rounded after each micro-batch.
TEST(Precisions, Bf16GradientsFollowTheSameLossCurve) {
  constexpr int64_t kSteps = 8;
  for (const ModelType type : {ModelType::gpt2, ModelType::qwen3})
    for (const int64_t micro : {4, 1}) {
      Setting s{.precision = "bf16", .recompute = {}, .micro = micro};
      const Curve exact = train(type, s, kSteps);
      s.gradients = DType::bf16;
      const Curve rounded = train(type, s, kSteps);
      EXPECT_NE(rounded.weights, exact.weights);
      for (size_t i = 0; i < kSteps; ++i)
        EXPECT_NEAR(rounded.losses[i], exact.losses[i], 3e-3 * exact.losses[i]) << "step " << i;
      const auto gradients = [&](DType dtype) {
        s.gradients = dtype;
        Rig rig(1);
        Engine engine(tiny(type), options(s), rig.backend());
        return engine.memory().total(MemoryKind::gradients);
      };
      EXPECT_NEAR(2.0 * double(gradients(DType::bf16)) / double(gradients(DType::f32)), 1, 0.02);  // except for padding
    }
}

TEST(Precisions, FollowTheFp32LossCurve) {
  const Curve reference = train(ModelType::llama, {}, 8);
  for (const auto& [precision, band] : {std::pair{"tf32", 5e-3}, {"bf16", 2e-2}, {"fp16", 5e-3}}) {
    Setting s;
    s.precision = precision;
    const Curve c = train(ModelType::llama, s, 8);
    for (size_t i = 0; i < 8; ++i)
      EXPECT_NEAR(c.losses[i], reference.losses[i], band * reference.losses[i]) << precision << " step " << i;
  }
}

TEST(Engine, ChunkedLogitsGiveTheSameLoss) {
  const Curve whole = train(ModelType::gpt2, {}, 2);
  Setting s;
  s.chunk_rows = 13;
  const Curve chunks = train(ModelType::gpt2, s, 2);
  EXPECT_LE(chunks.activations, whole.activations);
  for (size_t i = 0; i < 2; ++i) EXPECT_NEAR(whole.losses[i], chunks.losses[i], 1e-5 * whole.losses[i]);
}

TEST(Engine, AllocatesExactlyItsPlan) {
  Rig rig;
  const size_t before = rig.device->allocated();
  {
    Engine engine(tiny(ModelType::llama), options({}), rig.backend());
    const size_t least = engine.least_memory();
    engine.commit();
    const MemoryPlan& plan = engine.memory();
    EXPECT_EQ(rig.device->allocated() - before, plan.total());
    EXPECT_LE(least, plan.total());
    EXPECT_GT(least, plan.total() - plan.total(MemoryKind::activations));
  }
  EXPECT_EQ(rig.device->allocated(), before);
}

TEST(Engine, MicroBatchAndUpdateCostsSumToTheStep) {
  Rig rig;
  Setting one, two;
  one.micro = 4, two.micro = 2;  // for a global batch of 4
  Engine whole(tiny(ModelType::gpt2), options(one), rig.backend());
  Engine halves(tiny(ModelType::gpt2), options(two), rig.backend());
  whole.memory(), halves.memory();
  ASSERT_EQ(halves.micro_batches(), 2 * whole.micro_batches());
  const Ceilings endless_bandwidth{.flops = 1.0, .bytes = 1e300}, endless_rate{.flops = 1e300, .bytes = 1.0};
  const auto least_seconds = [](const Engine& engine, const Ceilings& ceilings) {
    double micro = 0, update = 0;
    for (const Launch& launch : engine.micro_launches()) micro += ceilings.least_seconds(launch.cost);
    for (const Launch& launch : engine.update_launches()) update += ceilings.least_seconds(launch.cost);
    return double(engine.micro_batches()) * micro + update;
  };
  const double flops = least_seconds(whole, endless_bandwidth);
  const double tokens = double(whole.micro_batches() * whole.options().micro_batch_size * 17);
  EXPECT_GT(flops, 0.9 * tokens * flops_per_token(whole.model(), 17).causal);
  EXPECT_NEAR(least_seconds(halves, endless_bandwidth), flops, 0.05 * flops);          // same work, two micro-batches
  EXPECT_GT(least_seconds(halves, endless_rate), least_seconds(whole, endless_rate));  // weights are read twice
}

TEST(Engine, TwoModelsTrainInOneProcess) {
  Rig rig;
  Engine a(tiny(ModelType::gpt2), options({}), rig.backend()), b(tiny(ModelType::llama), options({}), rig.backend());
  a.commit(), b.commit();
  a.init_weights(), b.init_weights();
  std::vector<double> la, lb;
  for (int64_t step = 0; step < 3; ++step) {
    accumulate(a, step);
    accumulate(b, step);
    la.push_back(a.finish_step().loss);
    lb.push_back(b.finish_step().loss);
  }
  EXPECT_EQ(la, train(ModelType::gpt2, {}, 3).losses);
  EXPECT_EQ(lb, train(ModelType::llama, {}, 3).losses);
}

TEST(Engine, NumberOfMicroBatchesMayChangeBetweenSteps) {
  Rig rig;
  Setting s;
  s.micro = 1;
  Engine engine(tiny(ModelType::gpt2), options(s), rig.backend());
  engine.commit();
  engine.init_weights();
  for (const int64_t micros : {4, 1, 7}) {
    PhaseClock clock;
    const auto tokens = stream(17, 67, "tokens"), targets = stream(17, 67, "targets");
    for (int64_t m = 0; m < micros; ++m) engine.micro_batch(tokens, targets, clock);
    EXPECT_NEAR(engine.finish_step().loss / double(micros * 17), std::log(67.0),
                0.5);  // near uniform predictions, whatever the count
  }
}

// A poisoned weight makes loss and gradients non-finite: only the counts may change, and training continues.
TEST(Engine, NonFiniteStepIsSkippedOnTheDevice) {
  Rig rig;
  Engine engine(tiny(ModelType::llama), options({}), rig.backend());
  engine.commit();
  engine.init_weights();
  accumulate(engine, 0);
  EXPECT_EQ(engine.finish_step().updates, 1);
  const Tensor& master = engine.model().params().units()[1]->master;
  const float good = rig.read<float>(master)[5];
  rig.write(master, 5, std::numeric_limits<float>::infinity());
  accumulate(engine, 1);
  const auto before = weights_of(rig, engine);
  const StepState bad = engine.finish_step();
  EXPECT_EQ(bad.skip, 1);
  EXPECT_EQ(bad.updates, 1);
  EXPECT_EQ(bad.skipped, 1);
  EXPECT_EQ(weights_of(rig, engine), before);
  rig.write(master, 5, good);
  accumulate(engine, 1);
  const StepState next = engine.finish_step();
  EXPECT_EQ(next.skip, 0);
  EXPECT_EQ(next.updates, 2);
  EXPECT_EQ(next.skipped_in_row, 0);
  EXPECT_TRUE(std::isfinite(next.loss));
}

TEST(Engine, DiscardedStepChangesNothing) {
  Rig rig;
  Engine a(tiny(ModelType::gpt2), options({}), rig.backend()), b(tiny(ModelType::gpt2), options({}), rig.backend());
  a.commit(), b.commit();
  a.init_weights(), b.init_weights();
  accumulate(a, 3);
  a.discard_step();
  for (auto* e : {&a, &b}) accumulate(*e, 0);
  EXPECT_EQ(a.finish_step().loss, b.finish_step().loss);
  EXPECT_EQ(weights_of(rig, a), weights_of(rig, b));
}

// Vocabulary padding (67 -> 128 rows) must never get a value.
TEST(Engine, PaddedVocabularyStaysZero) {
  Rig rig;
  Engine engine(tiny(ModelType::gpt2), options({}), rig.backend());
  engine.commit();
  engine.init_weights();
  for (int64_t step = 0; step < 3; ++step) {
    accumulate(engine, step);
    engine.finish_step();
  }
  const Tensor wte = engine.model().params().value(engine.model().head());
  ASSERT_EQ(wte.rows(), 128);
  const auto values = rig.read<float>(wte);
  for (int64_t i = 67 * wte.cols(); i < wte.numel(); ++i) ASSERT_EQ(values[size_t(i)], 0.0f) << i;
}

TEST(Engine, InitialWeightsDependOnlyOnSeedAndName) {
  Rig rig;
  Engine engine(tiny(ModelType::llama), options({}), rig.backend());
  engine.commit();
  engine.init_weights();
  for (const auto& piece : engine.model().params().pieces()) {
    const auto all = rig.read<float>(engine.model().params().units()[size_t(piece.unit)]->master);
    const float* w = all.data() + piece.offset;
    const std::string& name = piece.slice->name;
    const bool residual_output = name.ends_with("o_proj.weight") || name.ends_with("down_proj.weight");
    for (int64_t i = 0; i < piece.slice->shape.numel(); ++i) {
      const float normal = random_normal(7, stream_of(name), uint64_t(i));
      const float std_dev = residual_output ? 0.02f / std::sqrt(6.0f) : 0.02f;
      const float want = piece.slice->shape.rank == 1 ? 1.0f : std_dev * normal;
      ASSERT_NEAR(w[i], want, 1e-8) << name << " " << i;
    }
  }
}

TEST(MemoryPlan, RefusesModelsThatDoNotFitAndNamesOptions) {
  Rig rig;
  Engine engine(tiny(ModelType::gpt2), options({}), rig.backend());
  try {
    engine.memory().require_fits(1000, 0);
    FAIL() << "fits into 1000 bytes?";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Exit::usage);
    EXPECT_NE(std::string(e.what()).find("activations"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("micro_batch_size"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace athanor
