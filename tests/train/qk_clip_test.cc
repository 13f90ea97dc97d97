// QK-clip: weights match the paper's rule in double, and planted mistakes are detected; logits that would grow stay at
// the threshold; ranks, recomputation and restarts change no bit.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>

#include "tests/larger_error.h"
#include "tests/sanitized.h"
#include "tests/train/optimizer_rig.h"
#include "tests/train/ranks_rig.h"

namespace athanor::ranks {
namespace {
using ::testing::HasSubstr;

// A single update, compared with the rule in double.

constexpr int64_t kInputs = 5, kDim = 3;
constexpr double kThreshold = 2;

enum class Clip { right, twice, next_head, keys_forgotten, bias_forgotten, keys_of_groups };

// [Kimi Team 2025, "Kimi K2", alg. 1]: factor of an output channel of Q (then K, then V).
double factor_in_double(int64_t output, int64_t kv_heads, const std::vector<double>& top, Clip how) {
  const auto heads = int64_t(top.size());
  int64_t head = output / kDim;
  const bool key = head >= heads && head < heads + kv_heads, shared = kv_heads < heads;
  if (head >= heads + kv_heads) return 1;
  if (key) {
    if (how == Clip::keys_forgotten || (shared && how != Clip::keys_of_groups)) return 1;
    head = (head - heads) * (heads / kv_heads);
  }
  if (how == Clip::next_head) head = (head + 1) % heads;
  const double gamma = std::min(1.0, kThreshold / top[size_t(head)]);
  return how == Clip::twice || (shared && how != Clip::keys_of_groups) ? gamma : std::sqrt(gamma);
}

// Maximum difference of the weights and biases after a step from those of the rule, or of a mistake.
struct Layer {
  int64_t heads, kv_heads;
  bool in_out = false;
  const char* precision = "fp32";
};
double most_off(const Layer& l, Clip how) {
  using namespace optimizers;
  const int64_t outputs = (l.heads + 2 * l.kv_heads) * kDim;
  const Cut cut{
      .axis = l.in_out ? 1 : 0, .parts = {l.heads * kDim, l.kv_heads * kDim, l.kv_heads * kDim}, .whole = kDim};
  ParamSpec w = matrix("qkv", l.in_out ? Shape{kInputs, outputs} : Shape{outputs, kInputs}, l.in_out);
  w.cut = cut, w.attention = 0;
  ParamSpec b{.name = "b", .shape = {outputs}, .role = Role::vector, .slices = {{"b", {outputs}, 0}}};
  b.cut = {.axis = 0, .parts = cut.parts, .whole = kDim}, b.attention = 0;
  OptimizerOptions o = with(RuleName::sgd);
  o.weight_decay = 0, o.qk_clip_threshold = kThreshold;
  optimizers::Trained t({matrix("other", {4, 4}), w, b}, o, l.precision);
  const std::vector<double> tops{5, 1, 2.5, 40};
  const std::vector<float> top(tops.begin(), tops.begin() + l.heads);
  t.set(t.max_attention_logits.slice(0, l.heads), top);
  const auto fill = [&](const auto& of, const auto& tensor, int step) {
    t.set(tensor(1), values([&](int64_t i) { return of(i, step); }, outputs, kInputs, l.in_out));
    t.set(tensor(2), values([&](int64_t i) { return of(i + 1000, step); }, outputs, 1, false));
  };
  fill([](int64_t i, int) { return start(i); }, [&](size_t p) { return t.master(p); }, 0);
  fill([](int64_t i, int step) { return gradient(i, step); }, [&](size_t p) { return t.grad(p); }, 1);
  t.step();
  const auto want = [&](int64_t i, int64_t output, bool bias) {
    const double factor = factor_in_double(output, l.kv_heads, {tops.begin(), tops.begin() + l.heads}, how);
    return (bias && how == Clip::bias_forgotten ? 1 : factor) * (start(i) - kRate * gradient(i, 1));
  };
  double most = 0;
  const std::vector<float> weights = t.weights(1), biases = t.weights(2);
  for (int64_t r = 0; r < outputs; ++r) {
    most = testing::larger_error(most, std::abs(double(biases[size_t(r)]) - want(r + 1000, r, true)));
    for (int64_t c = 0; c < kInputs; ++c)
      most =
          testing::larger_error(most, std::abs(double(weights[size_t(l.in_out ? c * outputs + r : r * kInputs + c)]) -
                                               want(r * kInputs + c, r, false)));
  }
  if (const Tensor& value = t.params.units()[0]->value)
    for (size_t p : {1, 2}) {
      const std::vector<bf16> copy = t.rig.read<bf16>(t.flat(value, p));
      for (size_t i = 0; i < copy.size(); ++i)
        EXPECT_EQ(to_float(copy[i]), to_float(from_float<bf16>(t.weights(p)[i]))) << "what GEMMs read";
    }
  return most;
}

TEST(QkClip, ScalesHeadsAsInThePaperAndDetectsMistakes) {
  for (const Layer& l :
       {Layer{4, 4}, Layer{4, 4, true}, Layer{4, 2}, Layer{4, 1, false, "bf16"}, Layer{3, 3, true, "bf16"}}) {
    EXPECT_LT(most_off(l, Clip::right), 1e-6) << l.heads << "/" << l.kv_heads << " " << l.in_out;
    for (const Clip mistake :
         {Clip::twice, Clip::next_head, Clip::keys_forgotten, Clip::bias_forgotten, Clip::keys_of_groups}) {
      const bool no_mistake = l.heads == l.kv_heads ? mistake == Clip::keys_of_groups
                                                    : mistake == Clip::twice || mistake == Clip::keys_forgotten;
      EXPECT_TRUE(no_mistake || most_off(l, mistake) > 1e-2) << int(mistake);
    }
  }
}

TEST(QkClip, SkippedStepScalesNothing) {
  using namespace optimizers;
  ParamSpec w = matrix("qkv", {9, kInputs});
  w.cut = {.axis = 0, .parts = {3, 3, 3}, .whole = 3}, w.attention = 0;
  OptimizerOptions o = with(RuleName::adamw);
  o.qk_clip_threshold = kThreshold;
  optimizers::Trained t({w}, o);
  t.set(t.master(), values(start, 9, kInputs, false));
  t.set(t.max_attention_logits.slice(0, 1), {10});
  const std::vector<float> before = t.weights();
  t.step(NAN);
  EXPECT_EQ(t.weights(), before);
  t.step();
  EXPECT_NE(t.weights(), before);
}

TEST(QkClip, QueriesAndKeysMustBeFrozenTogether) {
  const auto error = [](std::vector<ParamGroup> groups) -> std::string {
    const Setting s{.type = ModelType::gpt2, .groups = std::move(groups), .qk_clip = 1};
    const std::unique_ptr<Model> model = make_model(tiny(s));
    try {
      const Optimizer optimizer(options(s).optimizer, model->params());
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_THAT(error({{.match = "*c_attn.bias", .frozen = true}}), HasSubstr("train or freeze both"));
  EXPECT_THAT(error({{.match = "*c_attn.*", .frozen = true}}), HasSubstr("all frozen"));
  EXPECT_EQ(error({{.match = "*h.0.attn.c_attn.*", .frozen = true}}), "");
}

// Tests with whole models.

// Sets the biases of Q and K to non-zero values, as after training.
void spread_biases(Engine& engine, Device& device) {
  const ParamStore& params = engine.model().params();
  for (const auto& piece : params.pieces()) {
    const ParamSpec& spec = params.specs()[size_t(piece.param)];
    if (spec.attention < 0 || spec.role != Role::vector) continue;
    std::vector<float> numbers(size_t(piece.slice->shape.numel()));
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = float(0.2 * std::cos(double(i) + spec.attention));
    const Tensor master = params.units()[size_t(piece.unit)]->master;
    device.copy(master.at(piece.offset), numbers.data(), numbers.size() * sizeof(float), Stream::compute);
  }
  engine.refresh_values();
}

// Maximum logits of two steps on the same batch in which only clipping changes weights. Uses one layer, because later
// layers see other inputs after a clip.
std::pair<float, float> scores_of_two_steps(Setting s, double threshold) {
  s.lr = 0, s.qk_clip = threshold;
  std::pair<float, float> scores;
  ModelConfig model = tiny(s);
  model.num_hidden_layers = 1;
  const auto body = [&](Engine& engine, ProcessMesh&, const CpuBackend& cpu) {
    spread_biases(engine, *cpu.device);
    for (float* score : {&scores.first, &scores.second}) {
      accumulate(engine, 0);
      *score = engine.finish_step().max_attention_logit;
    }
  };
  on_ranks(s, options(s), body, model);
  return scores;
}

TEST(QkClip, NoHeadExceedsTheThresholdOnTheSameBatch) {
  for (const Setting& s :
       {Setting{.type = ModelType::gpt2}, Setting{.type = ModelType::llama}, Setting{.type = ModelType::qwen2},
        Setting{.type = ModelType::llama, .kv_heads = 4}, Setting{.type = ModelType::gpt2, .precision = "bf16"},
        Setting{.type = ModelType::llama, .precision = "bf16", .master = DType::f32}}) {
    const double tolerance = std::string(s.precision) == "bf16" ? 0.02 : 1e-5;
    const auto [first, unclipped] = scores_of_two_steps(s, 1e9);
    EXPECT_GT(first, 0);
    EXPECT_EQ(first, unclipped) << s.name();
    const double threshold = double(first) / 3;
    const auto [before, after] = scores_of_two_steps(s, threshold);
    EXPECT_EQ(before, first) << s.name();
    EXPECT_NEAR(double(after), threshold, tolerance * threshold) << s.name();
  }
}

TEST(QkClip, GrowingLogitsStayAtTheThreshold) {
  constexpr float kLimit = 1;
  Setting s{.lr = 0.03, .qk_clip = 1e9};
  const Curve off = train(s, 24);
  s.qk_clip = kLimit;
  const Curve on = train(s, 24);
  EXPECT_GT(off.scores.back(), 3 * kLimit);
  EXPECT_LT(on.scores.back(), 1.5f * kLimit);
  EXPECT_NE(off.masters, on.masters);
}

// When off, it plans nothing and changes no bit; a threshold that is never reached changes no bit either.
TEST(QkClip, OffOrUnreachedThresholdIsBitExact) {
  const Curve want = train({}), idle = train({.qk_clip = 1e9});
  EXPECT_EQ(want.masters, idle.masters);
  EXPECT_EQ(want.scores[0], 0);
  EXPECT_GT(idle.scores[0], 0);
  EXPECT_EQ(idle.planned[0] - want.planned[0], 256);  // [2, 4] f32, aligned
}

TEST(QkClip, RecomputationAndMicroBatchesGiveTheSameLogits) {
  const Setting plain{.qk_clip = 0.003};
  const Curve want = train(plain), off = train({});
  EXPECT_NE(want.masters, off.masters) << "something is clipped";
  for (const auto recompute : {Recompute::Granularity::selective, Recompute::Granularity::full}) {
    Setting s = plain;
    s.recompute = recompute;
    expect_equal(want, train(s), s.name());
  }
  Setting s = plain;
  s.accumulation = 4;
  EXPECT_EQ(train(s).scores[0], want.scores[0]);
}

TEST(QkClip, IsBitExactOnAnyRanks) {
  struct Case {
    RuleName rule;
    ModelType type;
    const char* precision;
    DType master = DType::f32;
    double ema = 0;
  };
  for (const Case& c :
       {Case{RuleName::muon, ModelType::llama, "fp32"}, Case{RuleName::adamw, ModelType::gpt2, "bf16", DType::i16, 0.9},
        Case{RuleName::lion, ModelType::qwen2, "bf16", DType::bf16}, Case{RuleName::lamb, ModelType::gpt2, "bf16"},
        Case{RuleName::schedule_free_adamw, ModelType::gpt2, "bf16", DType::i16}}) {
    Setting s{.type = c.type,
              .precision = c.precision,
              .master = c.master,
              .leaves = 4,
              .rule = c.rule,
              .ema = c.ema,
              .qk_clip = 1e9};
    const Curve off = train(s);
    s.qk_clip = double(off.scores[0]) / 2;
    const Curve want = train(s);
    EXPECT_NE(off.masters, want.masters);
    EXPECT_EQ(off.scores[0], want.scores[0]);
    for (const auto& [replicas, shards] : {std::pair{1, 2}, {2, 2}, {1, 4}})
      for (const int stage : {0, 1, 2, 3}) {
        if ((replicas == 1) != (stage % 2 == 1) && (kSanitized || c.rule != RuleName::adamw)) continue;
        s.replicas = replicas, s.shards = shards, s.stage = stage;
        const Curve got = train(s);
        expect_equal(want, got, cat(kRuleNames[size_t(c.rule)], " ", s.name()));
        EXPECT_EQ(want.evaluation, got.evaluation) << s.name();
      }
  }
}

TEST(QkClip, TensorParallelRanksClipTheirOwnHeads) {
  for (const ModelType type : {ModelType::gpt2, ModelType::llama, ModelType::qwen2}) {
    Setting s{.type = type, .qk_clip = 1e9};
    s.qk_clip = double(train(s).scores[0]) / 2;
    const Curve want = train(s);
    s.tensor = 2;
    const Curve got = train(s);
    expect_same(want, got, 1e-5, s.name());
    for (size_t i = 0; i < want.scores.size(); ++i)
      EXPECT_NEAR(got.scores[i], want.scores[i], 1e-4 * want.scores[i]) << s.name() << " step " << i;
  }
}

TEST(QkClip, ResumesBitExactly) {
  testing::TempDir dir;
  const Setting s{.type = ModelType::gpt2, .precision = "bf16", .master = DType::bf16, .qk_clip = 0.003};
  run_part(s, "", 0, 4, dir / "whole");
  run_part(s, "", 0, 2, dir / "first");
  run_part(s, cat(dir / "first", "/", step_folder(2)), 2, 4, dir / "rest");
  EXPECT_EQ(tensors_of(cat(dir / "whole", "/", step_folder(4))), tensors_of(cat(dir / "rest", "/", step_folder(4))));
}

}  // namespace
}  // namespace athanor::ranks
