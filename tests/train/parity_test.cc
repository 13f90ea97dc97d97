// Both families against PyTorch on the same weights and data (tests/golden/README.md): logits, losses, gradients and
// the weights after ten AdamW steps.
#include <gtest/gtest.h>

#include <cmath>

#include "base/file.h"
#include "checkpoint/safetensors.h"
#include "config/config.h"
#include "tests/train/harness.h"
#include "train/snapshot.h"

namespace athanor {
namespace {

using testing::Rig;

constexpr double kLossTolerance = 1e-5, kLossAfterTolerance = 1e-4, kCosine = 0.99999, kWeightTolerance = 1e-3;

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
    aa += x * x, bb += y * y, ab += x * y, dd += (x - y) * (x - y), worst = std::max(worst, std::abs(x - y));
  }
  return {ab / std::sqrt(aa * bb), std::sqrt(dd / bb), worst};
}

// The middle third of GPT-2's c_attn.bias: zero gradient in theory, rounding in practice.
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

  EngineOptions options(int64_t micro) const {
    EngineOptions o;
    o.recipe = make_recipe("fp32", DType::f32);
    o.seq_length = seq_;
    o.micro_batch_size = micro;
    o.global_batch_size = batch_;
    o.adamw = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
    o.schedule = {.style = DecayStyle::constant, .lr = 1e-3, .min_lr = 1e-3};
    o.clip_grad = 1;
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

  const std::string folder_;
  const SafetensorsFile reference_;
  const ModelConfig config_;
  int64_t steps_, batch_, seq_;
  std::vector<int32_t> tokens_, targets_;
  Rig rig_;
};

TEST_P(Parity, LogitsOfTheFirstBatch) {
  Engine engine(config_, options(batch_), rig_.backend());
  engine.want_logits();
  engine.commit();
  load_weights(engine, *rig_.device, folder_);
  const auto logits = engine.logits(rows(tokens_, 0, 0, batch_));
  const auto expected = floats(reference_, "logits");
  ASSERT_EQ(logits.size(), expected.size());
  EXPECT_LT(compare(logits.data(), expected).absolute, 1e-5);
}

TEST_P(Parity, GradientsOfTheFirstStep) {
  for (const int64_t micro : {batch_, int64_t{1}}) {
    Engine engine(config_, options(micro), rig_.backend());
    engine.commit();
    load_weights(engine, *rig_.device, folder_);
    accumulate(engine, 0);
    const ParamStore& params = engine.model().params();
    for (const auto& piece : params.pieces()) {
      const auto expected = floats(reference_, "grad." + piece.slice->name);
      const auto all = rig_.read<float>(params.units()[size_t(piece.unit)]->grad);
      const float* got = all.data() + piece.offset;
      ASSERT_EQ(int64_t(expected.size()), piece.slice->shape.numel()) << piece.slice->name;
      const Difference d = compare(got, expected);
      EXPECT_GT(d.cosine, kCosine) << piece.slice->name << " micro " << micro;
      EXPECT_LT(d.relative, 1e-4) << piece.slice->name << " micro " << micro;
    }
    const StepState state = engine.finish_step();
    EXPECT_NEAR(state.grad_norm, floats(reference_, "grad_norms")[0], 1e-5 * state.grad_norm);
  }
}

TEST_P(Parity, TenSteps) {
  Engine engine(config_, options(batch_), rig_.backend());
  engine.commit();
  load_weights(engine, *rig_.device, folder_);
  const auto losses = floats(reference_, "losses");
  for (int64_t step = 0; step < steps_; ++step) {
    accumulate(engine, step);
    const double got = loss(engine.finish_step()), want = losses[size_t(step)];
    EXPECT_NEAR(got, want, (step == 0 ? kLossTolerance : kLossAfterTolerance) * want) << "step " << step;
  }
  const SafetensorsFile initial(folder_ + "/model.safetensors");
  for (const auto& piece : engine.model().params().pieces()) {
    const std::string& name = piece.slice->name;
    const auto final = floats(reference_, "final." + name), start = floats(initial, name);
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

INSTANTIATE_TEST_SUITE_P(Golden, Parity, ::testing::Values("gpt2", "llama", "llama3", "qwen2", "qwen3", "mistral"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace athanor
