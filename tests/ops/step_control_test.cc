// Laws of the end of a step: schedules at their corners, clipping, skipped steps, Adam's bias terms, loss scaling.
#include "ops/step_control.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numbers>

#include "ops/update.h"

namespace athanor {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

TEST(Schedule, WarmUpStartsAtOneStepAndEndsAtTheFullRate) {
  for (DecayStyle style : {DecayStyle::constant, DecayStyle::linear, DecayStyle::cosine, DecayStyle::wsd}) {
    const Schedule s{.style = style, .lr = 0.8, .min_lr = 0.2, .warmup = 4, .decay = 20, .wsd_decay = 5};
    EXPECT_DOUBLE_EQ(learning_rate(s, 0), 0.2);
    EXPECT_DOUBLE_EQ(learning_rate(s, 1), 0.4);
    EXPECT_DOUBLE_EQ(learning_rate(s, 3), 0.8);
    EXPECT_DOUBLE_EQ(learning_rate(s, 4), 0.8);  // decay starts from the full rate
  }
}

TEST(Schedule, EndsAtTheMinimumRateAndStaysThere) {
  for (DecayStyle style : {DecayStyle::linear, DecayStyle::cosine, DecayStyle::wsd}) {
    const Schedule s{.style = style, .lr = 0.8, .min_lr = 0.2, .warmup = 4, .decay = 20, .wsd_decay = 5};
    for (int64_t step : {20, 21, 1000000}) EXPECT_DOUBLE_EQ(learning_rate(s, step), 0.2);
    EXPECT_GT(learning_rate(s, 19), 0.2);
  }
  const Schedule constant{.lr = 0.8, .min_lr = 0.2, .warmup = 4, .decay = 20};
  EXPECT_DOUBLE_EQ(learning_rate(constant, 1000000), 0.8);
}

TEST(Schedule, LinearAndCosineMatchTheirFormulas) {
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

TEST(Schedule, IsDefinedWithoutWarmUpOrDecaySteps) {
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

// torch.optim.lr_scheduler.OneCycleLR(max_lr=0.5, total_steps=10, pct_start=0.3), with base_momentum 0.85 and
// max_momentum 0.95, as PyTorch's documentation and source define it: half cosines from max_lr / 25 at step 0 to max_lr
// at step 2, and to max_lr / 25 / 1e4 at step 9.
TEST(Schedule, OneCycleMatchesPyTorch) {
  const Schedule s{.style = DecayStyle::one_cycle,
                   .lr = 0.5,
                   .min_lr = 0.5 / 25 / 1e4,
                   .warmup = 3,
                   .decay = 10,
                   .start = 0.5 / 25,
                   .low_momentum = 0.85};
  const auto between = [](double from, double to, double r) {
    return to + (from - to) / 2 * (1 + std::cos(std::numbers::pi * r));
  };
  for (int64_t step = 0; step < 10; ++step) {
    const bool rising = step <= 2;
    const double r = rising ? double(step) / 2 : double(step - 2) / 7;
    EXPECT_NEAR(learning_rate(s, step), rising ? between(0.02, 0.5, r) : between(0.5, 2e-6, r), 1e-15) << step;
    StepState now;
    now.momentum_low = step_rates(s, step).momentum_low;
    now.low_momentum = s.low_momentum;
    EXPECT_NEAR(momentum_now(0.95, now), rising ? between(0.95, 0.85, r) : between(0.85, 0.95, r), 1e-15) << step;
  }
  for (int64_t step : {10, 1000}) EXPECT_DOUBLE_EQ(learning_rate(s, step), 2e-6);
}

TEST(Schedule, OneCycleIsDefinedForShortRuns) {
  for (int64_t warmup : {0, 1, 2})
    for (int64_t decay : {1, 2, 3})
      for (int64_t step = 0; step < 5; ++step) {
        const Schedule s{
            .style = DecayStyle::one_cycle, .lr = 1, .min_lr = 0.1, .warmup = warmup, .decay = decay, .start = 0.2};
        const StepRates rates = step_rates(s, step);
        EXPECT_TRUE(rates.lr >= 0.1 && rates.lr <= 1) << warmup << " " << decay << " " << step << ": " << rates.lr;
        EXPECT_TRUE(rates.momentum_low >= 0 && rates.momentum_low <= 1) << warmup << " " << decay << " " << step;
      }
}

// [Vaswani et al. 2017, eq. 3], with a floor: the rate at four times the warm-up is half the peak.
TEST(Schedule, InverseSquareRootDecaysWithoutEnd) {
  const Schedule s{.style = DecayStyle::inverse_sqrt, .lr = 0.8, .min_lr = 0.1, .warmup = 4, .decay = 20};
  EXPECT_DOUBLE_EQ(learning_rate(s, 1), 0.4);
  EXPECT_DOUBLE_EQ(learning_rate(s, 4), 0.8);
  EXPECT_DOUBLE_EQ(learning_rate(s, 16), 0.4);
  EXPECT_DOUBLE_EQ(learning_rate(s, 64), 0.2);
  EXPECT_DOUBLE_EQ(learning_rate(s, 100000), 0.1);
  const Schedule cold{.style = DecayStyle::inverse_sqrt, .lr = 1, .min_lr = 0};
  EXPECT_DOUBLE_EQ(learning_rate(cold, 0), 1);
  EXPECT_DOUBLE_EQ(learning_rate(cold, 4), 0.5);
}

TEST(Schedule, WarmsUpFromAnInitialRate) {
  const Schedule s{.style = DecayStyle::cosine, .lr = 0.8, .min_lr = 0.2, .warmup = 4, .decay = 20, .start = 0.4};
  EXPECT_DOUBLE_EQ(learning_rate(s, 0), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate(s, 3), 0.8);
}

// [Megatron-LM, optimizer_param_scheduler.py: 2 * 0.5^r - 1]
TEST(Schedule, WsdDecaysExponentially) {
  const Schedule s{
      .style = DecayStyle::wsd, .wsd = WsdDecay::exponential, .lr = 1, .min_lr = 0.2, .decay = 100, .wsd_decay = 16};
  EXPECT_DOUBLE_EQ(learning_rate(s, 84), 1);
  EXPECT_NEAR(learning_rate(s, 92), 0.2 + 0.8 * (std::sqrt(2.0) - 1), 1e-15);
  EXPECT_DOUBLE_EQ(learning_rate(s, 100), 0.2);
}

TEST(Schedule, ExponentialGrowsByAConstantFactor) {
  const Schedule s{.style = DecayStyle::exponential, .lr = 1, .decay = 9, .start = 1e-8};
  for (int64_t step = 0; step < 9; ++step)
    EXPECT_NEAR(learning_rate(s, step) / std::pow(10.0, double(step) - 8), 1, 1e-12) << step;
}

TEST(Schedule, MomentumWarmsUpToTheConfiguredValue) {
  const Schedule s{.momentum_warmup = 4, .low_momentum = 0.8};
  const double expected[] = {0.8, 0.825, 0.85, 0.875, 0.9, 0.9};
  for (int64_t step = 0; step < 6; ++step) {
    StepState now;
    now.momentum_low = step_rates(s, step).momentum_low;
    now.low_momentum = s.low_momentum;
    EXPECT_NEAR(momentum_now(0.9, now), expected[step], 1e-15) << step;
  }
  EXPECT_EQ(momentum_now(0.9, StepState{}), 0.9);  // to the bit where nothing is scheduled
}

TEST(Schedule, WeightDecayReachesItsFinalValue) {
  Schedule s{.decay = 8, .weight_decay = WeightDecayStyle::linear, .end_weight_decay = 3};
  EXPECT_EQ(weight_decay_factor(s, 0), 1);
  EXPECT_DOUBLE_EQ(weight_decay_factor(s, 2), 1.5);
  EXPECT_DOUBLE_EQ(weight_decay_factor(s, 8), 3);
  EXPECT_DOUBLE_EQ(weight_decay_factor(s, 80), 3);
  s.weight_decay = WeightDecayStyle::cosine;
  EXPECT_DOUBLE_EQ(weight_decay_factor(s, 4), 2);
  EXPECT_DOUBLE_EQ(weight_decay_factor(s, 2), 2 - std::sqrt(0.5));
  s.weight_decay = WeightDecayStyle::constant;
  EXPECT_EQ(weight_decay_factor(s, 4), 1);
}

StepControl control(double clip = 1) {
  return {.schedule = {.style = DecayStyle::linear, .lr = 0.8, .min_lr = 0.2, .warmup = 4, .decay = 20},
          .clip_grad = clip,
          .averages = {{0.9, true}, {0.95}}};
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

TEST(StepControl, NormOfWorkersIsTheirRootMeanSquare) {
  StepState s;
  s.norm_sq = 4 * 9;
  StepControl c;
  c.clip_grad = 1.5, c.workers = 4;
  close_step(s, c);
  EXPECT_EQ(s.grad_norm, 3);
  EXPECT_NEAR(s.grad_scale, 0.5, 1e-6);
}

TEST(StepControl, UndoesTheLossScaleBeforeClipping) {
  StepState s;
  s.loss_scale = 1024;
  s.norm_sq = 25.0 * 1024 * 1024;
  close_step(s, control(10));
  EXPECT_FLOAT_EQ(s.grad_norm, 5);
  EXPECT_EQ(s.grad_scale, 1.0f / 1024);
}

TEST(StepControl, ReportsAndClearsSums) {
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
TEST(StepControl, MeansAreOverTargets) {
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

// 1 / (weight of the newest step): for weights equal to the square of the maximum learning rate so far, and for equal
// weights after the first three steps.
TEST(StepControl, WeightsStepsOfAverages) {
  StepControl c = control();
  c.averages[0] = {.weighting = Weighting::squared_rate};
  c.averages[1] = {.weighting = Weighting::equal, .start = 3};
  StepState s;
  const double rates[] = {0.2, 0.4, 0.6, 0.8, 0.8}, equal[] = {1, 1, 1, 1, 2};
  double sum = 0;
  for (int step = 0; step < 5; ++step) {
    s.norm_sq = kInf;
    close_step(s, c);
    EXPECT_DOUBLE_EQ(s.squared_lr_sum, sum) << "a skipped step has no weight";
    close_step(s, c);
    sum += rates[step] * rates[step];
    EXPECT_FLOAT_EQ(s.corrections[0], float(sum / (rates[step] * rates[step])));
    EXPECT_FLOAT_EQ(s.corrections[1], float(equal[step]));
  }
  c.schedule = {.lr = 0.1};  // a rate that falls does not make later steps count less
  close_step(s, c);
  EXPECT_FLOAT_EQ(s.lr, 0.1f);
  EXPECT_FLOAT_EQ(s.corrections[0], float((sum + 0.64) / 0.64));
}

TEST(StepControl, SkippedStepAdvancesNoSchedule) {
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

TEST(StepControl, SetsMomentumAndWeightDecayOfTheStep) {
  StepControl c = control();
  c.schedule.momentum_warmup = 2;
  c.schedule.low_momentum = 0.5;
  c.schedule.weight_decay = WeightDecayStyle::linear;
  c.schedule.end_weight_decay = 21;
  StepState s;
  struct Op {
    double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1, rate = 1;
    int average1 = 0, average2 = 1;
    bool coupled = false, cautious = false;
  };
  const double momenta[] = {0.5, 0.7, 0.9}, factors[] = {1, 2, 3};
  for (int step = 0; step < 3; ++step) {
    close_step(s, c);
    const AdamScalars scalars = adam_scalars(Op{}, s);
    EXPECT_FLOAT_EQ(scalars.beta1, float(momenta[step]));
    EXPECT_FLOAT_EQ(scalars.one_minus_beta1, float(1 - momenta[step]));
    EXPECT_FLOAT_EQ(s.corrections[0], float(1 - std::pow(momenta[step], step + 1)));
    EXPECT_FLOAT_EQ(scalars.decay, float(1 - double(s.lr) * 0.1 * factors[step]));
  }
}

// ---- spikes

struct Spikes {
  StepControl c = control(0);
  SpikeWindow window;
  StepState s;
  Spikes() { c.spikes = {.deviations = 4, .most_in_row = 2}; }
  void step(double loss, double norm) {
    s.loss_sum = 10 * loss;
    s.targets = 10;
    s.norm_sq = norm * norm;
    close_step(s, c, &window);
  }
  // Losses alternate between 2 and 4, norms between 1 and 3: standard deviations of 1 around 3 and 2.
  void fill() {
    for (int64_t i = 0; i < SpikeWindow::kSteps; ++i) step(i % 2 == 0 ? 2 : 4, i % 2 == 0 ? 1 : 3);
  }
};

TEST(Spikes, AreNotDetectedBeforeTheWindowIsFull) {
  Spikes run;
  for (int64_t i = 0; i < SpikeWindow::kSteps - 1; ++i) run.step(1, 1);
  run.step(1000, 1000);
  EXPECT_EQ(run.s.skip, 0);
  EXPECT_EQ(run.s.updates, SpikeWindow::kSteps);
}

TEST(Spikes, SkipTheStep) {
  for (const auto& [loss, norm] : {std::pair{7.5, 2.0}, {3.0, 6.5}}) {
    Spikes run;
    run.fill();
    run.step(6.5, 5.5);  // 3.5 deviations
    EXPECT_EQ(run.s.skip, 0);
    Spikes other;
    other.fill();
    const SpikeWindow before = other.window;
    other.step(loss, norm);
    EXPECT_EQ(other.s.skip, 1);
    EXPECT_EQ(other.s.spike, 1);
    EXPECT_EQ(other.s.spikes, 1);
    EXPECT_EQ(other.s.skipped, 1);
    EXPECT_EQ(other.s.skipped_in_row, 0);  // it is no step with numbers that are not finite
    EXPECT_EQ(other.s.grad_scale, 0);
    EXPECT_EQ(other.s.updates, SpikeWindow::kSteps);
    EXPECT_EQ(other.window.count, before.count);
    EXPECT_NEAR(double(std::max(other.s.loss_deviations, other.s.norm_deviations)), 4.5, 1e-5);
    other.step(3, 2);
    EXPECT_EQ(other.s.skip, 0);
    EXPECT_EQ(other.s.spikes_in_row, 0);
  }
}

TEST(Spikes, AreSkippedUpToTheConsecutiveLimit) {
  Spikes run;
  run.fill();
  std::string skips;
  for (int i = 0; i < 4; ++i) {
    run.step(50, 2);
    skips += run.s.skip ? 'x' : '.';
  }
  EXPECT_EQ(skips, "xx.x");  // what was taken is in the window from then on, which still calls the next one a spike
  EXPECT_EQ(run.s.spikes, 3);
  EXPECT_EQ(run.window.loss[0], 50);
}

TEST(Spikes, ExcludeLowAndEqualValues) {
  Spikes run;
  run.fill();
  run.step(-100, 0);
  EXPECT_EQ(run.s.skip, 0);
  Spikes flat;
  for (int64_t i = 0; i < SpikeWindow::kSteps; ++i) flat.step(2, 1);
  flat.step(3, 2);  // no deviation to measure by
  EXPECT_EQ(flat.s.skip, 0);
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
