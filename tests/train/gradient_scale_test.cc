// Clipping and loss scaling: an update rule must see only the product of the stored gradient and StepState::grad_scale,
// in its first step and in its moments; and its first step depends on the size of that product as stated in its paper.
// Tests every update rule, on the tests' backend and on the reference.
#include <gtest/gtest.h>

#include <cmath>

#include "reference/reference_ops.h"
#include "tests/larger_error.h"
#include "tests/train/optimizer_rig.h"

namespace athanor::optimizers {
namespace {

// How the first step without decay changes if all gradients are multiplied by a factor.
enum class Size { unchanged, multiplied };
Size first_step_of(RuleName rule) {
  switch (rule) {
    case RuleName::adamw:                // m^ / sqrt(v^) = g / |g| [Kingma & Ba 2015, sec. 2.1]
    case RuleName::adam:                 // like adamw
    case RuleName::adamw_8bit:           // quantization happens after the step [Dettmers et al. 2022, sec. 2]
    case RuleName::schedule_free_adamw:  // g / sqrt(v^) [Defazio et al. 2024, alg. 1]
    case RuleName::lamb:                 // Adam's step, scaled by the weights' norm [You et al. 2020, alg. 2]
    case RuleName::adafactor:            // g / sqrt(R C / mean(R)), before the clipping [Shazeer & Stern 2018, alg. 4]
    case RuleName::onebit_adam:          // like adamw before the freeze
    case RuleName::onebit_lamb:          // like lamb before the freeze
    case RuleName::lion:                 // sign(g) [Chen et al. 2023, alg. 2]
    case RuleName::muon:                 // orthogonal factor of g [Jordan et al. 2024]
    case RuleName::normuon:              // like muon, with equal norms of all outputs [Li et al. 2025, alg. 1]
      return Size::unchanged;
    case RuleName::sgd:
      return Size::multiplied;
  }
  return Size::unchanged;
}

struct Rule {
  RuleName name;
  double update_clip_threshold = 0;
  std::string label() const {
    return cat(kRuleNames[size_t(name)], update_clip_threshold > 0 ? "_with_clipped_updates" : "");
  }
};
std::vector<Rule> all_rules() {
  std::vector<Rule> rules{{RuleName::adamw, 0.6}};
  for (size_t i = 0; i < std::size(kRuleNames); ++i) rules.push_back({RuleName(i)});
  return rules;
}

// How gradients are passed to the update rule.
struct Delivery {
  float loss_scale = 1;   // stored gradients are multiplied by it
  double clip_grad = 0;   // maximum global norm
  double multiplied = 1;  // factor of the gradients before clipping
};

constexpr int64_t kTensors = 3;

// Tensors of every role. Some rows of the table have no gradient, like tokens missing in a batch; so the RMS of
// Adafactor's update is below its limit.
std::vector<ParamSpec> some_of_each() {
  return {matrix("w", {16, 32}),
          {.name = "table", .shape = {24, 16}, .role = Role::embedding, .slices = {{"table", {24, 16}, 0}}},
          {.name = "norm", .shape = {40}, .role = Role::vector, .slices = {{"norm", {40}, 0}}}};
}
double gradient_of(int64_t tensor, int64_t i, int step) {
  if (tensor == 1 && (i / 16 + step) % 3 == 0) return 0;
  const double g = 0.01 * gradient(i + 50 * tensor, step);
  return std::copysign(0.002 + std::abs(g), g);
}

class GradientScale : public ::testing::TestWithParam<Rule> {
 protected:
  // Weights after these steps, one Delivery per step. `as_computed`: gradients are multiplied by the clip factor
  // beforehand instead.
  std::vector<std::vector<float>> weights_after(const std::vector<Delivery>& steps, bool as_computed, bool reference) {
    OptimizerOptions o = with(GetParam().name);
    o.weight_decay = 0;
    o.eps = 1e-20;
    o.min_8bit_size = 256;
    o.freeze_step = 100;
    o.update_clip_threshold = GetParam().update_clip_threshold;
    Trained t(some_of_each(), o, "fp32", DType::f32, reference ? make_reference() : nullptr);
    for (size_t p = 0; p < kTensors; ++p)
      t.set(t.master(p), values([&](int64_t i) { return start(i + int64_t(p)); }, t.master(p).numel(), 1, false));
    for (size_t s = 0; s < steps.size(); ++s) {
      const Delivery& how = steps[s];
      double squares = 0;
      const auto of = [&](int64_t p, int64_t i) { return how.multiplied * gradient_of(p, i, int(s)); };
      for (int64_t p = 0; p < kTensors; ++p)
        for (int64_t i = 0; i < t.master(size_t(p)).numel(); ++i) squares += of(p, i) * of(p, i);
      const double norm = std::sqrt(squares);
      const double clip = how.clip_grad > 0 ? std::min(1.0, how.clip_grad / norm) : 1;
      const double stored = as_computed ? clip : double(how.loss_scale);
      for (int64_t p = 0; p < kTensors; ++p)
        t.set(t.grad(size_t(p)),
              values([&](int64_t i) { return stored * of(p, i); }, t.master(size_t(p)).numel(), 1, false));
      t.loss_scale = as_computed ? 1 : how.loss_scale;
      t.clip_grad = as_computed ? 0 : how.clip_grad;
      t.step(stored * stored * squares);
    }
    std::vector<std::vector<float>> all;
    for (size_t p = 0; p < kTensors; ++p) all.push_back(t.weights(p));
    return all;
  }

  // Maximum |(a - start) - factor (b - start)| of a tensor, divided by its maximum |a - start|.
  static double most_apart(const std::vector<float>& a, const std::vector<float>& b, size_t tensor, double factor) {
    double apart = 0, moved = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      const double from = float(start(int64_t(i + tensor)));
      apart = testing::larger_error(apart, std::abs((double(a[i]) - from) - factor * (double(b[i]) - from)));
      moved = std::max(moved, std::abs(double(a[i]) - from));
    }
    EXPECT_GT(moved, 1e-6);
    return apart / moved;
  }
  void expect_alike(const std::vector<Delivery>& steps) {
    for (const bool reference : {false, true}) {
      if (reference && !Rig().device->unified()) continue;
      const auto seen = weights_after(steps, false, reference), meant = weights_after(steps, true, reference);
      for (size_t p = 0; p < kTensors; ++p)
        EXPECT_LT(most_apart(seen[p], meant[p], p, 1), 1e-3) << "tensor " << p << (reference ? ", reference" : "");
    }
  }
};

// Tests update directions and moments over all steps.
TEST_P(GradientScale, LossScaleAndClippingActAsScalingTheGradient) {
  expect_alike({{.loss_scale = 65536}});
  expect_alike({{.clip_grad = 0.01}});
  expect_alike({{.loss_scale = 1024, .clip_grad = 0.02},
                {.loss_scale = 2048, .clip_grad = 0.02, .multiplied = 30},
                {.loss_scale = 2048},
                {.loss_scale = 4, .clip_grad = 0.5, .multiplied = 1000},
                {.loss_scale = 1, .clip_grad = 1e-3}});
}

TEST_P(GradientScale, FirstStepDependsOnGradientSizeAsInThePaper) {
  for (const bool reference : {false, true}) {
    if (reference && !Rig().device->unified()) continue;
    const auto plain = weights_after({{}}, false, reference);
    const double norm = 1, most = 0.02;
    double squares = 0;
    for (int64_t p = 0; p < kTensors; ++p)
      for (size_t i = 0; i < plain[size_t(p)].size(); ++i) squares += std::pow(gradient_of(p, int64_t(i), 0), 2);
    const auto expect_times = [&](const Delivery& how, double factor) {
      if (first_step_of(GetParam().name) == Size::unchanged) factor = 1;
      const auto got = weights_after({how}, false, reference);
      for (size_t p = 0; p < kTensors; ++p)
        EXPECT_LT(most_apart(got[p], plain[p], p, factor), 1e-2) << "tensor " << p << (reference ? ", reference" : "");
    };
    ASSERT_GT(std::sqrt(squares), 2 * most);
    ASSERT_LT(std::sqrt(squares), norm);
    expect_times({.multiplied = 16}, 16);
    expect_times({.loss_scale = 65536}, 1);
    expect_times({.clip_grad = norm}, 1);
    expect_times({.clip_grad = most}, most / std::sqrt(squares));
    expect_times({.loss_scale = 512, .clip_grad = most, .multiplied = 100}, most / std::sqrt(squares));
  }
}

INSTANTIATE_TEST_SUITE_P(Rules, GradientScale, ::testing::ValuesIn(all_rules()),
                         [](const auto& which) { return which.param.label(); });

}  // namespace
}  // namespace athanor::optimizers
