// Laws of the end of a step: schedules at their corners, clipping, skipped steps, Adam's bias terms, loss scaling.
#include "ops/step_control.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace athanor {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

TEST(Schedule, WarmsUpFromOneStepsShareToTheFullRate) {
  for (DecayStyle style : {DecayStyle::constant, DecayStyle::linear, DecayStyle::cosine, DecayStyle::wsd}) {
    const Schedule s{.style = style, .lr = 0.8, .min_lr = 0.2, .warmup = 4, .decay = 20, .wsd_decay = 5};
    EXPECT_DOUBLE_EQ(learning_rate(s, 0), 0.2);
    EXPECT_DOUBLE_EQ(learning_rate(s, 1), 0.4);
    EXPECT_DOUBLE_EQ(learning_rate(s, 3), 0.8);
    EXPECT_DOUBLE_EQ(learning_rate(s, 4), 0.8);  // decay starts from the full rate
  }
}

TEST(Schedule, EndsAtTheLeastRateAndStaysThere) {
  for (DecayStyle style : {DecayStyle::linear, DecayStyle::cosine, DecayStyle::wsd}) {
    const Schedule s{.style = style, .lr = 0.8, .min_lr = 0.2, .warmup = 4, .decay = 20, .wsd_decay = 5};
    for (int64_t step : {20, 21, 1000000}) EXPECT_DOUBLE_EQ(learning_rate(s, step), 0.2);
    EXPECT_GT(learning_rate(s, 19), 0.2);
  }
  const Schedule constant{.lr = 0.8, .min_lr = 0.2, .warmup = 4, .decay = 20};
  EXPECT_DOUBLE_EQ(learning_rate(constant, 1000000), 0.8);
}

TEST(Schedule, PassesTheMiddleOfItsCurve) {
  Schedule s{.style = DecayStyle::linear, .lr = 0.8, .min_lr = 0.2, .warmup = 4, .decay = 20};
  EXPECT_DOUBLE_EQ(learning_rate(s, 12), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate(s, 8), 0.65);
  s.style = DecayStyle::cosine;
  EXPECT_DOUBLE_EQ(learning_rate(s, 12), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate(s, 8), 0.5 + 0.3 * std::sqrt(0.5));
}

TEST(Schedule, WsdIsStableAndThenDecaysInItsShape) {
  Schedule s{.style = DecayStyle::wsd, .lr = 1, .min_lr = 0, .warmup = 2, .decay = 100, .wsd_decay = 16};
  for (int64_t step = 2; step <= 84; ++step) EXPECT_DOUBLE_EQ(learning_rate(s, step), 1) << step;
  EXPECT_DOUBLE_EQ(learning_rate(s, 88), 0.75);
  EXPECT_DOUBLE_EQ(learning_rate(s, 92), 0.5);
  s.wsd = WsdDecay::cosine;
  EXPECT_DOUBLE_EQ(learning_rate(s, 92), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate(s, 88), 0.5 + 0.5 * std::sqrt(0.5));
  s.wsd = WsdDecay::minus_sqrt;
  EXPECT_DOUBLE_EQ(learning_rate(s, 88), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate(s, 85), 0.75);
}

TEST(Schedule, HasNoHolesWithoutWarmUpOrDecaySteps) {
  for (DecayStyle style : {DecayStyle::constant, DecayStyle::linear, DecayStyle::cosine, DecayStyle::wsd})
    for (int64_t decay : {0, 1, 5})
      for (int64_t step = 0; step < 8; ++step) {
        const double lr = learning_rate({.style = style, .lr = 1, .min_lr = 0.1, .decay = decay}, step);
        EXPECT_TRUE(lr >= 0.1 && lr <= 1) << int(style) << " " << decay << " " << step << ": " << lr;
      }
  const Schedule late{.style = DecayStyle::cosine, .lr = 1, .min_lr = 0.1, .warmup = 10, .decay = 10};
  EXPECT_DOUBLE_EQ(learning_rate(late, 9), 1);
  EXPECT_DOUBLE_EQ(learning_rate(late, 10), 0.1);
}

StepControl control(double clip = 1) {
  return {.schedule = {.style = DecayStyle::linear, .lr = 0.8, .min_lr = 0.2, .warmup = 4, .decay = 20},
          .clip_grad = clip,
          .averages = {0.9, 0.95}};
}

TEST(StepControl, ClipsToTheGlobalNorm) {
  StepState s;
  s.norm_sq = 25;
  close_step(s, control(1));
  EXPECT_FLOAT_EQ(s.grad_norm, 5);
  EXPECT_NEAR(s.grad_scale, 0.2, 1e-6);
  s.norm_sq = 25;
  close_step(s, control(0));  // off
  EXPECT_EQ(s.grad_scale, 1);
  s.norm_sq = 0.25;
  close_step(s, control(1));  // below the limit nothing changes
  EXPECT_EQ(s.grad_scale, 1);
  s.norm_sq = 0;
  close_step(s, control(1));
  EXPECT_EQ(s.grad_scale, 1);
}

TEST(StepControl, UndoesTheLossScaleBeforeClipping) {
  StepState s;
  s.loss_scale = 1024;
  s.norm_sq = 25.0 * 1024 * 1024;
  close_step(s, control(10));
  EXPECT_FLOAT_EQ(s.grad_norm, 5);
  EXPECT_EQ(s.grad_scale, 1.0f / 1024);
}

TEST(StepControl, ReportsAndClearsTheSums) {
  StepState s;
  s.loss_sum = 3.5;
  s.norm_sq = 4;
  close_step(s, control());
  EXPECT_EQ(s.loss, 3.5);
  EXPECT_EQ(s.grad_norm, 2);
  EXPECT_EQ(s.loss_sum, 0);
  EXPECT_EQ(s.norm_sq, 0);
}

// Gradients divided by 64 although only 16 targets counted: the mean is over those.
TEST(StepControl, MeansAreOverTheTargets) {
  StepControl c = control(0);
  c.divided_by = 64;
  c.clip_grad = 0;
  StepState s;
  s.norm_sq = 4;
  s.targets = 16;
  close_step(s, c);
  EXPECT_EQ(s.grad_norm, 8);
  EXPECT_EQ(s.grad_scale, 4);
  EXPECT_EQ(s.loss_targets, 16);
  EXPECT_EQ(s.targets, 0);
  c.clip_grad = 4;
  s.norm_sq = 4;
  s.targets = 16;
  close_step(s, c);
  EXPECT_NEAR(s.grad_scale, 2, 1e-5);  // clipping sees the norm of the mean
  c.clip_grad = 0;
  for (const double targets : {0.0, 64.0}) {
    s.norm_sq = 4;
    s.targets = targets;
    close_step(s, c);
    EXPECT_EQ(s.grad_norm, 2);
    EXPECT_EQ(s.grad_scale, 1);
  }
}

TEST(StepControl, CountsUpdatesForScheduleAndBias) {
  StepState s;
  const float rates[] = {0.2f, 0.4f, 0.6f, 0.8f, 0.8f};
  for (int step = 0; step < 5; ++step) {
    close_step(s, control());
    EXPECT_FLOAT_EQ(s.lr, rates[step]);
    EXPECT_EQ(s.updates, step + 1);
    EXPECT_FLOAT_EQ(s.corrections[0], float(1 - std::pow(0.9, step + 1)));
    EXPECT_FLOAT_EQ(s.corrections[1], float(1 - std::pow(0.95, step + 1)));
  }
}

TEST(StepControl, ASkippedStepTakesNoTime) {
  for (const auto& [norm_sq, loss] : {std::pair{kInf, 1.0}, {kInf - kInf, 1.0}, {1.0, kInf}, {1.0, kInf - kInf}}) {
    StepState s;
    close_step(s, control());
    const StepState before = s;
    for (int row = 1; row <= 3; ++row) {
      s.norm_sq = norm_sq;
      s.loss_sum = loss;
      close_step(s, control());
      EXPECT_EQ(s.skip, 1);
      EXPECT_EQ(s.grad_scale, 0);
      EXPECT_EQ(s.updates, before.updates);
      EXPECT_EQ(s.skipped, row);
      EXPECT_EQ(s.skipped_in_row, row);
      EXPECT_EQ(s.loss_sum, 0);
      EXPECT_EQ(s.norm_sq, 0);
      EXPECT_EQ(s.loss_scale, 1);  // scaling is off
    }
    close_step(s, control());
    EXPECT_EQ(s.skip, 0);
    EXPECT_EQ(s.skipped, 3);
    EXPECT_EQ(s.skipped_in_row, 0);
    EXPECT_FLOAT_EQ(s.lr, 0.4f);  // the rate of the second update
  }
}

// Loss scale after each step; '.' is a good step, 'x' one with a gradient that is not finite.
std::vector<float> scales(const std::string& steps, LossScaling scaling, float start) {
  StepState s;
  s.loss_scale = start;
  s.hysteresis_left = scaling.hysteresis;
  StepControl c = control();
  c.scaling = scaling;
  std::vector<float> out;
  for (char step : steps) {
    s.norm_sq = step == 'x' ? kInf : 1.0;
    close_step(s, c);
    out.push_back(s.loss_scale);
  }
  return out;
}

// [DeepSpeed, runtime/fp16/loss_scaler.py: DynamicLossScaler, delayed_shift = hysteresis, consecutive_hysteresis off]
TEST(LossScaling, DoublesAfterAWindowAndHalvesAfterTheHysteresis) {
  const LossScaling scaling{.dynamic = true, .window = 3, .hysteresis = 2, .min_scale = 1};
  using V = std::vector<float>;
  EXPECT_EQ(scales("...", scaling, 8), (V{8, 8, 16}));
  EXPECT_EQ(scales("......", scaling, 8), (V{8, 8, 16, 16, 16, 32}));
  EXPECT_EQ(scales("x", scaling, 8), (V{8}));                    // the first bad step is forgiven
  EXPECT_EQ(scales("xxxx", scaling, 8), (V{8, 4, 2, 1}));        // from then on each one halves
  EXPECT_EQ(scales("x.x", scaling, 8), (V{8, 8, 4}));            // a few good steps do not restore the patience
  EXPECT_EQ(scales("x...x", scaling, 8), (V{8, 8, 8, 16, 16}));  // a full window does
  EXPECT_EQ(scales("..x..", scaling, 8), (V{8, 8, 8, 8, 8}));    // a bad step restarts the window
  EXPECT_EQ(scales("xxxxxx", scaling, 4), (V{4, 2, 1, 1, 1, 1}));
}

TEST(LossScaling, StaysFiniteAndAboveItsMinimum) {
  const LossScaling scaling{.dynamic = true, .window = 1, .hysteresis = 1, .min_scale = 2};
  EXPECT_EQ(scales(std::string(200, '.'), scaling, 8).back(), 0x1p60f);
  EXPECT_EQ(scales(std::string(200, 'x'), scaling, 8).back(), 2);
}

}  // namespace
}  // namespace athanor
