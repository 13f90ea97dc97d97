// Parameters: tensor-parallel shards hold whole heads and together everything; non-trainable parameters keep their
// bits.
#include <gtest/gtest.h>

#include <ctime>
#include <numeric>
#include <set>

#include "engine/engine.h"
#include "optim/optimizer.h"
#include "param/cut.h"
#include "tests/tiny_model.h"
#include "tests/train/harness.h"

namespace athanor {
namespace {

using testing::Rig;

constexpr ModelType kFamilies[] = {ModelType::gpt2, ModelType::llama, ModelType::qwen2, ModelType::qwen3,
                                   ModelType::mistral};

// 8 query heads; 4 KV heads if the family supports GQA.
ModelConfig sample_model(ModelType type) {
  return testing::tiny_model(
      type, {.vocab = 50, .hidden = 48, .heads = 8, .kv_heads = 4, .intermediate = 32, .positions = 16});
}

TEST(Cut, ShardsPartitionTheTensor) {
  for (const ModelType type : kFamilies) {
    const auto model = make_model(sample_model(type));
    for (const ParamSpec& spec : model->params().specs()) {
      if (spec.cut.axis < 0) continue;
      for (const int64_t count : {1, 2, 4}) {
        std::vector<int> held(size_t(std::accumulate(spec.cut.parts.begin(), spec.cut.parts.end(), int64_t{0})), 0);
        for (int64_t index = 0; index < count; ++index)
          for (const AxisRange& r : cut(spec, count, index))
            for (int64_t i = r.begin; i < r.end; ++i) ++held.at(size_t(i));
        EXPECT_TRUE(std::ranges::all_of(held, [](int n) { return n == 1; })) << spec.name << " in " << count;
      }
    }
  }
}

// Query head h uses KV head h / (H / K): Q, K and V heads must be in one shard; the output projection has the same
// heads.
TEST(Cut, HeadGroupsStayTogether) {
  for (const ModelType type : kFamilies) {
    const ModelConfig m = sample_model(type);
    const auto model = make_model(m);
    const int64_t d = m.head_dim, group = m.num_attention_heads / m.num_key_value_heads;
    for (const ParamSpec& spec : model->params().specs()) {
      if (spec.cut.parts.size() != 3) continue;
      const int64_t queries = m.num_attention_heads * d, keys = m.num_key_value_heads * d;
      for (int64_t index = 0; index < 2; ++index) {
        const auto r = cut(spec, 2, index);
        std::set<int64_t> wanted, held;
        for (int64_t h = r[0].begin / d; h < r[0].end / d; ++h) wanted.insert(h / group);
        for (int64_t k = (r[1].begin - queries) / d; k < (r[1].end - queries) / d; ++k) held.insert(k);
        EXPECT_EQ(wanted, held) << spec.name;
        EXPECT_EQ(r[2].begin - r[1].begin, keys) << spec.name;
        EXPECT_EQ(r[0].begin % d, 0);
      }
    }
  }
}

TEST(Cut, GateAndUpMatchTheColumnsOfDown) {
  const auto model = make_model(sample_model(ModelType::llama));
  for (const ParamSpec& spec : model->params().specs()) {
    if (!spec.name.ends_with("gate_up")) continue;
    EXPECT_EQ(cut(spec, 4, 1), (std::vector<AxisRange>{{8, 16}, {40, 48}}));
  }
}

// A vocabulary of 50 needs no padding between the slices of ranks; each slice is padded separately.
TEST(Cut, SupportsIndivisibleVocabularies) {
  const auto model = make_model(sample_model(ModelType::llama));
  const ParamSpec& spec = model->params().spec(model->head());
  std::vector<AxisRange> all;
  for (int rank = 0; rank < 4; ++rank) {
    all.push_back(cut(spec, 4, rank).at(0));
    const Placement part = place(spec, {4, rank}, 0);
    EXPECT_EQ(part.shape, (Shape{64, 48}));
    EXPECT_EQ(part.slices.at(0).numel, (all.back().end - all.back().begin) * 48);
  }
  EXPECT_EQ(all, (std::vector<AxisRange>{{0, 12}, {12, 25}, {25, 37}, {37, 50}}));
}

TEST(Cut, RefusesToSplitAHead) {
  const auto model = make_model(sample_model(ModelType::llama));
  for (const ParamSpec& spec : model->params().specs()) {
    if (spec.cut.parts.size() != 3) continue;
    try {
      cut(spec, 16, 0);
      ADD_FAILURE() << spec.name;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("8 pieces of 6 cannot be shared by 16 ranks"), std::string::npos)
          << e.what();
    }
  }
}

TEST(Cut, EveryGemmWeightHasACutAndNormsHaveNone) {
  for (const ModelType type : kFamilies) {
    const auto model = make_model(sample_model(type));
    for (const ParamSpec& spec : model->params().specs()) {
      EXPECT_EQ(spec.cut.axis < 0, spec.cut.parts.empty()) << spec.name;
      EXPECT_TRUE(spec.role == Role::vector || spec.name == "wpe" || spec.cut.axis >= 0) << spec.name;
      const bool norm = spec.name.find("norm") != std::string::npos || spec.name.find("ln_") != std::string::npos;
      EXPECT_FALSE(norm && spec.cut.axis >= 0) << spec.name;
    }
  }
}

EngineOptions frozen_options(std::vector<std::string> frozen) {
  EngineOptions o;
  o.recipe = make_recipe("fp32", DType::f32);
  o.seq_length = 16;
  o.micro_batch_size = o.global_batch_size = 2;
  o.seed = 3;
  o.schedule = {.style = DecayStyle::constant, .lr = 1e-2, .min_lr = 1e-2};
  o.clip_grad = 1;
  o.frozen = std::move(frozen);
  return o;
}

struct Trained {
  std::map<std::string, std::vector<float>> weights;  // by tensor name in files
  float grad_norm = 0;
};

Trained train_two_steps(std::vector<std::string> frozen, int steps = 2,
                        const ModelConfig& model = sample_model(ModelType::qwen2)) {
  Rig rig;
  Engine engine(model, frozen_options(std::move(frozen)), rig.backend());
  engine.commit();
  engine.init_weights();
  std::vector<int32_t> tokens(32), targets(32);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = int32_t(7 * i % 50), targets[i] = int32_t(11 * i % 50);
  Trained t;
  PhaseClock clock;
  for (int step = 0; step < steps; ++step) {
    engine.micro_batch(tokens, targets, clock);
    t.grad_norm = engine.finish_step().grad_norm;
  }
  const ParamStore& params = engine.model().params();
  for (const ParamStore::Piece& piece : params.pieces()) {
    const auto all = rig.read<float>(params.units()[size_t(piece.unit)]->master);
    const float* p = all.data() + piece.offset;
    t.weights[piece.slice->name].assign(p, p + piece.slice->shape.numel());
  }
  return t;
}

TEST(Trainable, FrozenParametersKeepTheirBitsAndOthersTrain) {
  const Trained start = train_two_steps({}, 0), end = train_two_steps({"embed_tokens", "qkv.b", "layers.1.mlp"});
  for (const auto& [name, weights] : end.weights) {
    const bool frozen = name.find("embed_tokens") != std::string::npos ||
                        name.find("layers.1.mlp") != std::string::npos || name.ends_with("proj.bias");
    EXPECT_EQ(weights == start.weights.at(name), frozen) << name;
  }
}

TEST(Trainable, NormExcludesFrozenGradients) {
  const Trained all = train_two_steps({}, 1), some = train_two_steps({"mlp"}, 1);
  EXPECT_GT(some.grad_norm, 0);
  EXPECT_LT(some.grad_norm, all.grad_norm);
}

TEST(Trainable, UnknownNamesAreRefused) { EXPECT_THROW(train_two_steps({"no such parameter"}, 0), Error); }

// A final norm without gain, and a head that is the embedding: the last unit has no weights.
TEST(Trainable, ModelsWithoutWeightsAfterTheirBlocksTrain) {
  ModelConfig model = sample_model(ModelType::athanor);
  model.tie_word_embeddings = true, model.lm_head_bias = false;
  model.skip_from.clear(), model.skip_lambdas.clear();
  EXPECT_GT(train_two_steps({}, 2, model).grad_norm, 0);
}

// Planning a unit must not search all units: with 20,000 units that took minutes, each time the engine was planned.
TEST(ParamPlan, PlanningTimeIsLinearInUnits) {
  constexpr int kUnits = 20000;
  ParamStore params;
  for (int u = 0; u < kUnits; ++u)
    for (const char* part : {"weight", "bias"}) {
      const std::string name = cat("layers.", u, ".", part);
      params.declare({.name = name, .shape = {64}, .role = Role::vector, .unit = u, .slices = {{name, {64}, 0}}});
    }
  const Optimizer optimizer({.rule = RuleName::sgd, .groups = {{.match = "*.bias", .frozen = true}}}, params);
  MemoryPlan plan;
  const std::clock_t begin = std::clock();
  params.plan(plan, make_recipe("fp32", DType::f32), true, optimizer.states());
  EXPECT_LT(double(std::clock() - begin) / CLOCKS_PER_SEC, 4) << "seconds of a processor";
  EXPECT_EQ(params.units().back()->states.size(), 1u);
}

}  // namespace
}  // namespace athanor
