// Both families compared with PyTorch on the same weights and data (tests/golden/README.md): logits, losses, gradients
// and the weights after ten AdamW steps.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/file.h"
#include "checkpoint/safetensors.h"
#include "config/config.h"
#include "convert/floats.h"
#include "tests/larger_error.h"
#include "tests/train/harness.h"
#include "train/snapshot.h"

namespace athanor {
namespace {

using testing::Rig;

// Tolerances: relative difference of the first loss and of later ones; cosine similarity of gradients; and the size of
// gradients that are zero in theory, relative to the maximum gradient next to them. bf16 rounds to 8 bits; f32 results
// are the reference.
struct Tolerances {
  const char* precision;
  double first_loss, later_loss, cosine, zero;
};
constexpr Tolerances kTolerances[] = {{"fp32", 1e-5, 1e-4, 0.99999, 1e-5}, {"bf16", 2e-3, 5e-3, 0.999, 3e-2}};
constexpr double kWeightTolerance = 1e-3;

std::vector<float> floats(const SafetensorsFile& file, const std::string& name) {
  const TensorEntry& e = file.at(name);
  std::vector<float> out(size_t(e.bytes) / 4);
  file.read(e, std::as_writable_bytes(std::span(out)));
  return out;
}
std::vector<int32_t> ints(const SafetensorsFile& file, const std::string& name) {
  const TensorEntry& e = file.at(name);
  std::vector<int32_t> out(size_t(e.bytes) / 4);
  file.read(e, std::as_writable_bytes(std::span(out)));
  return out;
}

struct Difference {
  double cosine, relative, absolute;
};
Difference compare(const float* a, const std::vector<float>& b) {
  double aa = 0, bb = 0, ab = 0, dd = 0, worst = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    const double x = a[i], y = b[i];
    aa += x * x, bb += y * y, ab += x * y, dd += (x - y) * (x - y),
        worst = testing::larger_error(worst, std::abs(x - y));
  }
  return {ab / std::sqrt(aa * bb), std::sqrt(dd / bb), worst};
}

// A gradient next to PyTorch's. Vectors, some of which have only 14 elements here, are compared together with those of
// the same kind in other layers.
struct Gradient {
  std::vector<float> got, want;
};
std::string kind_of(const std::string& name) {
  std::string kind;
  for (const char c : name)
    if (c < '0' || c > '9') kind += c;
  return kind;
}

// The middle third of GPT-2's c_attn.bias: the gradient is zero in theory, and rounding noise in practice.
bool has_key_bias(const std::string& name) { return name.ends_with("c_attn.bias"); }

class Parity : public ::testing::TestWithParam<const char*> {
 protected:
  Parity()
      : folder_(cat("tests/golden/", GetParam())),
        reference_(folder_ + "/reference.safetensors"),
        config_(load_model_config(folder_ + "/config.json")) {
    const auto shape = reference_.at("tokens").shape;
    steps_ = shape[0], batch_ = shape[1], seq_ = shape[2];
    tokens_ = ints(reference_, "tokens");
    targets_ = ints(reference_, "targets");
  }

  EngineOptions options(int64_t micro, const char* precision = "fp32") const {
    EngineOptions o;
    o.recipe = make_recipe(precision, DType::f32);
    o.seq_length = seq_;
    o.micro_batch_size = micro;
    o.global_batch_size = batch_;
    o.optimizer = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
    o.schedule = {.style = DecayStyle::constant, .lr = 1e-3, .min_lr = 1e-3};
    o.clip_grad = 1;
    o.router_bias_rate = 0;  // transformers does not update the bias
    return o;
  }
  std::span<const int32_t> rows(const std::vector<int32_t>& all, int64_t step, int64_t first, int64_t count) const {
    return std::span(all).subspan(size_t((step * batch_ + first) * seq_), size_t(count * seq_));
  }
  void accumulate(Engine& engine, int64_t step) {
    PhaseClock clock;
    const int64_t micro = engine.options().micro_batch_size;
    for (int64_t first = 0; first < batch_; first += micro)
      engine.micro_batch(rows(tokens_, step, first, micro), rows(targets_, step, first, micro), clock);
  }
  double loss(const StepState& s) const { return s.loss / double(batch_ * seq_); }

  // Compares the part that is zero in theory, and returns the rest.
  Gradient gradient(const std::string& name, const float* got, const Tolerances& t) const {
    Gradient g{{}, floats(reference_, "grad." + name)};
    g.got.assign(got, got + g.want.size());
    if (!has_key_bias(name)) return g;
    const auto third = int64_t(g.want.size() / 3);
    const auto size = [](float x, float y) { return std::abs(x) < std::abs(y); };
    const float zero = std::abs(*std::max_element(g.got.begin() + third, g.got.begin() + 2 * third, size));
    for (auto* side : {&g.got, &g.want}) side->erase(side->begin() + third, side->begin() + 2 * third);
    EXPECT_LE(zero, t.zero * std::abs(*std::max_element(g.got.begin(), g.got.end(), size)))
        << name << " " << t.precision;
    return g;
  }
  void expect_near(const std::string& name, const Gradient& g, const Tolerances& t) const {
    const Difference d = compare(g.got.data(), g.want);
    EXPECT_GT(d.cosine, t.cosine) << name << " " << t.precision;
    EXPECT_LT(d.relative, 2 * std::sqrt(2 * (1 - t.cosine))) << name << " " << t.precision;
  }
  void expect_gradients(Engine& engine, const Tolerances& t) {
    std::map<std::string, Gradient> vectors;  // by kind
    for (const auto& piece : engine.model().params().pieces()) {
      if (engine.model().params().specs()[size_t(piece.param)].buffer) continue;
      const std::string& name = piece.slice->name;
      const auto all = rig_.read<float>(engine.model().params().units()[size_t(piece.unit)]->grad);
      const Gradient g = gradient(name, all.data() + piece.offset, t);
      if (reference_.at("grad." + name).shape.size() > 1) {
        expect_near(name, g, t);
        continue;
      }
      Gradient& together = vectors[kind_of(name)];
      together.got.insert(together.got.end(), g.got.begin(), g.got.end());
      together.want.insert(together.want.end(), g.want.begin(), g.want.end());
    }
    for (const auto& [kind, g] : vectors) expect_near(kind, g, t);
  }

  void expect_final_weights(Engine& engine) {
    const ModelFolder initial(folder_);
    for (const auto& piece : engine.model().params().pieces()) {
      if (engine.model().params().specs()[size_t(piece.param)].buffer) continue;
      const std::string& name = piece.slice->name;
      const auto final = floats(reference_, "final." + name);
      std::vector<std::byte> bytes;
      std::vector<float> start;
      initial.read_run(initial.at(name), 0, int64_t(final.size()), bytes);
      to_floats(bytes, DType::f32, start);
      const auto all = rig_.read<float>(engine.model().params().units()[size_t(piece.unit)]->master);
      const float* got = all.data() + piece.offset;
      double difference = 0, moved = 0;
      for (size_t i = 0; i < final.size(); ++i) {
        if (has_key_bias(name) && i >= final.size() / 3 && i < final.size() * 2 / 3) continue;
        difference += std::pow(double(got[i]) - final[i], 2);
        moved += std::pow(double(final[i]) - start[i], 2);
      }
      EXPECT_LE(std::sqrt(difference), kWeightTolerance * std::sqrt(moved)) << name;
    }
  }

  const std::string folder_;
  const SafetensorsFile reference_;
  const ModelConfig config_;
  int64_t steps_, batch_, seq_;
  std::vector<int32_t> tokens_, targets_;
  Rig rig_;
};

TEST_P(Parity, LogitsOfTheFirstBatchMatchPyTorch) {
  Engine engine(config_, options(batch_), rig_.backend());
  engine.want_logits();
  engine.commit();
  load_weights(engine, *rig_.device, ModelFolder(folder_));
  const auto logits = engine.logits(rows(tokens_, 0, 0, batch_));
  const auto expected = floats(reference_, "logits");
  ASSERT_EQ(logits.size(), expected.size());
  EXPECT_LT(compare(logits.data(), expected).absolute, 1e-5);
}

// final_logit_softcapping: logits, losses and choices see softcap * tanh(logits / softcap).
TEST_P(Parity, SoftCappedLogitsMatchPyTorch) {
  constexpr double kCap = 0.5;
  ModelConfig config = config_;
  config.final_logit_softcapping = kCap;
  Engine engine(config, options(batch_), rig_.backend());
  engine.want_logits();
  engine.commit();
  load_weights(engine, *rig_.device, ModelFolder(folder_));
  auto want = floats(reference_, "logits");
  const double own = config_.final_logit_softcapping;  // the soft-cap of the reference model
  for (float& z : want) z = float(kCap * std::tanh((own > 0 ? own * std::atanh(double(z) / own) : double(z)) / kCap));
  const auto logits = engine.logits(rows(tokens_, 0, 0, batch_));
  EXPECT_LT(compare(logits.data(), want).absolute, 1e-5);
  const auto targets = rows(targets_, 0, 0, batch_);
  engine.evaluate(rows(tokens_, 0, 0, batch_), targets);
  const std::vector<float> losses = engine.losses();
  const auto vocab = size_t(config.vocab_size);
  for (size_t i = 0; i < targets.size(); ++i) {
    double sum = 0;
    for (size_t v = 0; v < vocab; ++v) sum += std::exp(double(want[i * vocab + v]));
    ASSERT_NEAR(losses[i], std::log(sum) - double(want[i * vocab + size_t(targets[i])]), 1e-5) << i;
  }
}

TEST_P(Parity, GradientsOfTheFirstStepMatchPyTorch) {
  for (const Tolerances& t : kTolerances)
    for (const int64_t micro : {batch_, int64_t{1}}) {
      Engine engine(config_, options(micro, t.precision), rig_.backend());
      engine.commit();
      load_weights(engine, *rig_.device, ModelFolder(folder_));
      accumulate(engine, 0);
      expect_gradients(engine, t);
      const StepState state = engine.finish_step();
      EXPECT_NEAR(state.grad_norm, floats(reference_, "grad_norms")[0], t.first_loss * 5 * state.grad_norm);
    }
}

TEST_P(Parity, TenStepsMatchPyTorch) {
  for (const Tolerances& t : kTolerances) {
    Engine engine(config_, options(batch_, t.precision), rig_.backend());
    engine.commit();
    load_weights(engine, *rig_.device, ModelFolder(folder_));
    const auto losses = floats(reference_, "losses");
    for (int64_t step = 0; step < steps_; ++step) {
      accumulate(engine, step);
      const double got = loss(engine.finish_step()), want = losses[size_t(step)];
      EXPECT_NEAR(got, want, (step == 0 ? t.first_loss : t.later_loss) * want) << t.precision << " step " << step;
    }
    if (t.precision == std::string("fp32")) expect_final_weights(engine);
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, Parity,
                         ::testing::Values("gpt2", "llama", "llama3", "qwen2", "qwen3", "mistral", "mixtral",
                                           "qwen2_moe", "qwen3_moe", "olmoe", "dots1", "deepseek_v3", "gpt_oss",
                                           "nanochat", "speedrun", "gated", "gates", "values", "sinks", "after",
                                           "both"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace athanor
