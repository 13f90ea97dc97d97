// Learning rate, momentum and weight decay as functions of the number of steps done, for host and device: StepControl
// evaluates them on the device inside a captured step.
//
//   style         after the warm-up, r from 0 to 1 at step `decay`       source
//   constant      lr
//   linear        lr -> min_lr
//   cosine        lr -> min_lr along half a cosine                       [Loshchilov & Hutter 2017, eq. 5]
//   wsd           lr, then a decay over the last wsd_decay steps:        [Hu et al. 2024 (MiniCPM); Hagele et al. 2024]
//                 1 - r, cosine, 1 - sqrt(r), or 2 * 0.5^r - 1
//   inverse_sqrt  lr * sqrt(warmup / step), at least min_lr; no end      [Vaswani et al. 2017, eq. 3]
//   one_cycle     start -> lr -> min_lr along half cosines, momentum     [Smith & Topin 2018; torch's OneCycleLR]
//                 the other way round; the rise is the warm-up
//   exponential   start -> lr, by the same factor each step, until decay [Smith 2017: the learning-rate range test]
#pragma once
#include <cmath>
#include <cstdint>
#include <numbers>

#include "base/choices.h"
#include "base/host_device.h"

namespace athanor {

struct Schedule {
  DecayStyle style = DecayStyle::constant;
  WsdDecay wsd = WsdDecay::linear;
  double lr = 0, min_lr = 0;
  int64_t warmup = 0, decay = 0, wsd_decay = 0;  // in steps; `decay` is where the decay ends, including the warm-up
  double start = 0;                              // learning rate before the warm-up, or in the first step
  // Momentum starts at low_momentum and rises linearly over momentum_warmup steps; with one_cycle it is low at the
  // peak.
  int64_t momentum_warmup = 0;
  double low_momentum = 0;
  WeightDecayStyle weight_decay = WeightDecayStyle::constant;  // schedule of the factor on the optimizer's own decay
  double end_weight_decay = 1;
};

// Learning rate, momentum and weight decay of one step.
struct StepRates {
  double lr = 0;
  double momentum_low = 0;  // 0: the optimizer's own momentum; 1: Schedule::low_momentum; between: between them
  double weight_decay = 1;  // multiplies the optimizer's own weight decay
};

ATHANOR_HOST_DEVICE inline double half_cosine(double from, double to, double r) {
  return to + (from - to) * 0.5 * (1 + std::cos(std::numbers::pi * r));
}

ATHANOR_HOST_DEVICE inline double wsd_decayed(const Schedule& s, double r) {
  const double span = s.lr - s.min_lr;
  switch (s.wsd) {
    case WsdDecay::linear:
      return s.lr - span * r;
    case WsdDecay::cosine:
      return half_cosine(s.lr, s.min_lr, r);
    case WsdDecay::minus_sqrt:
      return s.lr - span * std::sqrt(r);
    case WsdDecay::exponential:
      return s.min_lr + span * (2 * std::pow(0.5, r) - 1);
  }
  return s.lr;
}

// Position of step `step` of one_cycle, between start and peak or between peak and end.
struct CyclePlace {
  bool rising;
  double r;
};
ATHANOR_HOST_DEVICE inline CyclePlace cycle_place(const Schedule& s, int64_t step) {
  const int64_t peak = s.warmup > 0 ? s.warmup - 1 : 0;
  if (step < peak) return {true, double(step) / double(peak)};
  return {false, step + 1 >= s.decay ? (step > peak ? 1.0 : 0.0) : double(step - peak) / double(s.decay - 1 - peak)};
}

// Returns the learning rate of the step that follows `step` finished ones.
ATHANOR_HOST_DEVICE inline double learning_rate(const Schedule& s, int64_t step) {
  if (s.style == DecayStyle::one_cycle) {
    const CyclePlace at = cycle_place(s, step);
    return at.rising ? half_cosine(s.start, s.lr, at.r) : half_cosine(s.lr, s.min_lr, at.r);
  }
  if (s.style == DecayStyle::exponential)
    return step + 1 >= s.decay ? s.lr : s.start * std::pow(s.lr / s.start, double(step) / double(s.decay - 1));
  if (step < s.warmup) return s.start + (s.lr - s.start) * double(step + 1) / double(s.warmup);
  if (s.style == DecayStyle::constant) return s.lr;
  if (s.style == DecayStyle::inverse_sqrt) {
    const double from = s.warmup > 0 ? double(s.warmup) : 1.0, now = step > 0 ? double(step) : 1.0;
    const double lr = s.lr * std::sqrt(from) / std::sqrt(now);
    return lr > s.min_lr ? lr : s.min_lr;
  }
  if (step >= s.decay) return s.min_lr;
  if (s.style == DecayStyle::wsd) {
    const int64_t start = s.decay - s.wsd_decay;
    return step < start ? s.lr : wsd_decayed(s, double(step - start) / double(s.wsd_decay));
  }
  const double r = double(step - s.warmup) / double(s.decay - s.warmup);  // warmup <= step < decay
  return s.style == DecayStyle::linear ? s.lr + (s.min_lr - s.lr) * r : half_cosine(s.lr, s.min_lr, r);
}

ATHANOR_HOST_DEVICE inline double momentum_low(const Schedule& s, int64_t step) {
  if (s.style == DecayStyle::one_cycle) {
    const CyclePlace at = cycle_place(s, step);
    return at.rising ? half_cosine(0, 1, at.r) : half_cosine(1, 0, at.r);
  }
  return step < s.momentum_warmup ? 1 - double(step) / double(s.momentum_warmup) : 0;
}

// [Megatron-LM, --weight-decay-incr-style]
ATHANOR_HOST_DEVICE inline double weight_decay_factor(const Schedule& s, int64_t step) {
  if (s.weight_decay == WeightDecayStyle::constant) return 1;
  const double r = step < s.decay ? double(step) / double(s.decay) : 1;
  const double done = s.weight_decay == WeightDecayStyle::linear ? r : 1 - half_cosine(1, 0, r);
  return 1 + done * (s.end_weight_decay - 1);
}

ATHANOR_HOST_DEVICE inline StepRates step_rates(const Schedule& s, int64_t step) {
  return {learning_rate(s, step), momentum_low(s, step), weight_decay_factor(s, step)};
}

}  // namespace athanor
