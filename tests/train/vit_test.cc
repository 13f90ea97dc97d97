// A vision transformer compared with PyTorch on the same weights and images (tests/golden/vit, written by
// scripts/make_image_references.py): logits, losses, gradients, and the weights after ten AdamW steps.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "checkpoint/safetensors.h"
#include "config/config.h"
#include "tests/train/harness.h"
#include "train/snapshot.h"

namespace athanor {
namespace {

using testing::Rig;
const std::string kFolder = "tests/golden/vit";

class Vit : public ::testing::Test {
 protected:
  Vit()
      : reference_(kFolder + "/reference.safetensors"),
        config_(load_model_config(kFolder + "/config.json")),
        labels_(read<int32_t>("labels")) {
    const auto shape = reference_.at("pixels").shape;
    steps_ = shape[0], batch_ = shape[1], size_ = shape[2];
    for (const int32_t pixel : read<int32_t>("pixels")) pixels_.push_back(uint8_t(pixel));
  }

  template <class T>
  std::vector<T> read(const std::string& name) const {
    const TensorEntry& e = reference_.at(name);
    std::vector<T> out(size_t(e.bytes) / sizeof(T));
    reference_.read(e, std::as_writable_bytes(std::span(out)));
    return out;
  }
  EngineOptions options(int64_t micro, const char* precision = "fp32") const {
    EngineOptions o;
    o.recipe = make_recipe(precision, DType::f32);
    o.seq_length = config_.max_position_embeddings;
    o.micro_batch_size = micro;
    o.global_batch_size = batch_;
    o.optimizer = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
    o.schedule = {.style = DecayStyle::constant, .lr = 1e-3, .min_lr = 1e-3};
    o.clip_grad = 1;
    return o;
  }
  std::unique_ptr<Engine> engine(const EngineOptions& o) {
    auto engine = std::make_unique<Engine>(config_, o, rig_.backend());
    engine->commit();
    load_weights(*engine, *rig_.device, ModelFolder(kFolder));
    return engine;
  }
  // Rows of images [first, first + count) of a step, as the loader gives them.
  struct Rows {
    std::vector<int32_t> tokens, targets;
    std::span<const uint8_t> pixels;
  };
  Rows rows(int64_t step, int64_t first, int64_t count) const {
    const auto t = size_t(config_.max_position_embeddings);
    Rows out{.tokens = std::vector<int32_t>(size_t(count) * t, 0),
             .targets = std::vector<int32_t>(size_t(count) * t, -1),
             .pixels = std::span(pixels_).subspan(size_t((step * batch_ + first) * size_), size_t(count * size_))};
    for (int64_t i = 0; i < count; ++i) {
      out.tokens[size_t(i) * t] = 1;
      out.targets[size_t(i) * t] = labels_[size_t(step * batch_ + first + i)];
    }
    return out;
  }
  void accumulate(Engine& engine, int64_t step) {
    PhaseClock clock;
    const int64_t micro = engine.options().micro_batch_size;
    for (int64_t first = 0; first < batch_; first += micro) {
      const Rows r = rows(step, first, micro);
      engine.set_pixels(r.pixels);
      engine.micro_batch(r.tokens, r.targets, clock);
    }
  }
  std::vector<float> masters(Engine& engine) { return testing::all_masters(engine, *rig_.device); }

  const SafetensorsFile reference_;
  const ModelConfig config_;
  const std::vector<int32_t> labels_;
  std::vector<uint8_t> pixels_;
  int64_t steps_ = 0, batch_ = 0, size_ = 0;
  Rig rig_;
};

// The gradient of a key's bias is zero in theory, since it moves all scores of a query alike.
bool is_zero_in_theory(const std::string& name) { return name.ends_with("key.bias"); }

TEST_F(Vit, LossesAndClassesOfEvaluationsMatchPyTorch) {
  const auto e = engine(options(batch_));
  const Rows r = rows(0, 0, batch_);
  e->set_pixels(r.pixels);
  const auto logits = read<float>("logits");
  const double sum = e->evaluate(r.tokens, r.targets);
  EXPECT_NEAR(sum / double(batch_), read<float>("losses")[0], 1e-5);
  const std::vector<float> losses = e->losses();
  const std::vector<int32_t> classes = e->predicted_classes();
  ASSERT_EQ(int64_t(classes.size()), batch_);
  const auto k = config_.vocab_size;
  for (int64_t i = 0; i < batch_; ++i) {
    const auto row = std::span(logits).subspan(size_t(i * k), size_t(k));
    EXPECT_EQ(classes[size_t(i)], std::ranges::max_element(row) - row.begin());
    double all = 0;
    for (const float z : row) all += std::exp(double(z));
    const auto want = std::log(all) - double(row[size_t(labels_[size_t(i)])]);
    EXPECT_NEAR(losses[size_t(i * config_.max_position_embeddings)], want, 1e-5) << i;
  }
}

TEST_F(Vit, GradientsOfTheFirstStepMatchPyTorch) {
  for (const auto& [precision, cosine] : {std::pair{"fp32", 0.99999}, {"bf16", 0.998}})
    for (const int64_t micro : {batch_, int64_t{1}}) {
      const auto e = engine(options(micro, precision));
      accumulate(*e, 0);
      for (const auto& piece : e->model().params().pieces()) {
        const std::string& name = piece.slice->name;
        const auto all = rig_.read<float>(e->model().params().units()[size_t(piece.unit)]->grad);
        const auto want = read<float>("grad." + name);
        double aa = 0, bb = 0, ab = 0;
        for (size_t i = 0; i < want.size(); ++i) {
          const double a = all[size_t(piece.offset) + i], b = want[i];
          aa += a * a, bb += b * b, ab += a * b;
        }
        // The gradient is divided by all tokens of the batch, PyTorch's by the images.
        const double scale = double(config_.max_position_embeddings);
        if (is_zero_in_theory(name)) {
          EXPECT_LT(scale * std::sqrt(aa), precision == std::string("fp32") ? 1e-5 : 0.2) << name;
          continue;
        }
        EXPECT_GT(ab / std::sqrt(aa * bb), cosine) << name << " " << precision << " micro " << micro;
        EXPECT_NEAR(scale * std::sqrt(aa / bb), 1, 40 * (1 - cosine) + 1e-4) << name << " " << precision;
      }
    }
}

TEST_F(Vit, TenStepsMatchPyTorch) {
  const auto e = engine(options(batch_));
  const auto losses = read<float>("losses"), norms = read<float>("grad_norms");
  for (int64_t step = 0; step < steps_; ++step) {
    accumulate(*e, step);
    const StepState state = e->finish_step();
    EXPECT_NEAR(state.loss / state.loss_targets, losses[size_t(step)], 1e-4) << step;
    EXPECT_NEAR(state.grad_norm, norms[size_t(step)], 1e-3 * state.grad_norm) << step;
  }
  const SafetensorsFile initial(kFolder + "/model.safetensors");
  for (const auto& piece : e->model().params().pieces()) {
    const std::string& name = piece.slice->name;
    if (is_zero_in_theory(name)) continue;
    const auto final = read<float>("final." + name);
    std::vector<float> start(final.size());
    initial.read(initial.at(name), std::as_writable_bytes(std::span(start)));
    const auto all = rig_.read<float>(e->model().params().units()[size_t(piece.unit)]->master);
    double difference = 0, moved = 0;
    for (size_t i = 0; i < final.size(); ++i) {
      difference += std::pow(double(all[size_t(piece.offset) + i]) - final[i], 2);
      moved += std::pow(double(final[i]) - start[i], 2);
    }
    EXPECT_LE(std::sqrt(difference), 2e-3 * std::sqrt(moved)) << name;
  }
}

TEST_F(Vit, RecomputationKeepsTheBits) {
  std::vector<float> want;
  for (const auto granularity :
       {Recompute::Granularity::none, Recompute::Granularity::selective, Recompute::Granularity::full}) {
    EngineOptions o = options(batch_, "bf16");
    o.recompute = {granularity, 1};
    const auto e = engine(o);
    for (int64_t step = 0; step < 2; ++step) accumulate(*e, step), e->finish_step();
    if (want.empty()) want = masters(*e);
    EXPECT_EQ(masters(*e), want) << int(granularity);
  }
}

}  // namespace
}  // namespace athanor
