// The end of a step, computed in one way by every backend: learning-rate schedules, and the rule of StepControl.
#pragma once
#include <cmath>
#include <numbers>

#include "base/host_device.h"
#include "ops/optimizer.h"

namespace athanor {

ATHANOR_HOST_DEVICE inline double cosine_decayed(const Schedule& s, double progress) {
  return s.min_lr + (s.lr - s.min_lr) * 0.5 * (1 + std::cos(std::numbers::pi * progress));
}

ATHANOR_HOST_DEVICE inline double wsd_decayed(const Schedule& s, double progress) {
  const double span = s.lr - s.min_lr;  // [Hu et al. 2024 (MiniCPM); Hagele et al. 2024: 1 - sqrt]
  if (s.wsd == WsdDecay::cosine) return cosine_decayed(s, progress);
  return s.lr - span * (s.wsd == WsdDecay::linear ? progress : std::sqrt(progress));
}

ATHANOR_HOST_DEVICE inline double decayed(const Schedule& s, double progress) {  // progress in [0, 1], lr to min_lr
  if (s.style == DecayStyle::linear) return s.lr + (s.min_lr - s.lr) * progress;
  return cosine_decayed(s, progress);  // [Loshchilov & Hutter 2017, eq. 5]
}

// Learning rate of the step that follows `step` finished ones.
ATHANOR_HOST_DEVICE inline double learning_rate(const Schedule& s, int64_t step) {
  if (step < s.warmup) return s.lr * double(step + 1) / double(s.warmup);
  if (s.style == DecayStyle::constant) return s.lr;
  if (step >= s.decay) return s.min_lr;
  if (s.style == DecayStyle::wsd) {
    const int64_t start = s.decay - s.wsd_decay;
    return step < start ? s.lr : wsd_decayed(s, double(step - start) / double(s.wsd_decay));
  }
  return decayed(s, double(step - s.warmup) / double(s.decay - s.warmup));  // warmup <= step < decay
}

// fp16 only: doubles the loss scale after a window of good steps, halves it when bad ones outlast the hysteresis.
ATHANOR_HOST_DEVICE inline void adapt_loss_scale(StepState& s, const LossScaling& scaling, bool finite) {
  constexpr float kMost = 0x1p60f;
  if (finite) {
    if (++s.good_steps < scaling.window) return;
    s.loss_scale = s.loss_scale < kMost / 2 ? s.loss_scale * 2 : kMost;
    s.good_steps = 0;
    s.hysteresis_left = scaling.hysteresis;
    return;
  }
  s.good_steps = 0;
  if (--s.hysteresis_left > 0) return;
  const float half = s.loss_scale * 0.5f;
  s.loss_scale = half > scaling.min_scale ? half : scaling.min_scale;
  s.hysteresis_left = 1;  // keeps halving until a full window of good steps
}

// The rule of StepControl.
ATHANOR_HOST_DEVICE inline void close_step(StepState& s, const StepControl& c) {
  // Gradients become those of the mean over the targets, as PyTorch's cross_entropy takes it with ignore_index; a step
  // without targets has none. Without ignored targets the factor is exactly 1.
  const double mean = c.divided_by > 0 && s.targets > 0 ? c.divided_by / s.targets : 1;
  const double inv_scale = mean / double(s.loss_scale);
  const double norm = std::sqrt(s.norm_sq) * inv_scale;
  const bool finite = std::isfinite(norm) && std::isfinite(s.loss_sum);
  s.loss = s.loss_sum;
  s.loss_targets = s.targets;
  s.grad_norm = float(norm);
  s.loss_sum = 0;
  s.targets = 0;
  s.norm_sq = 0;
  s.skip = finite ? 0 : 1;
  s.lr = float(learning_rate(c.schedule, s.updates));
  if (finite) {
    const double fit = c.clip_grad / (norm + 1e-6);  // eps as torch's clip_grad_norm_
    s.grad_scale = float(inv_scale * (c.clip_grad > 0 && fit < 1 ? fit : 1));
    ++s.updates;
    s.skipped_in_row = 0;
    for (int i = 0; i < kMostAverages; ++i) s.corrections[i] = float(1 - std::pow(c.averages[i], double(s.updates)));
  } else {
    s.grad_scale = 0;
    ++s.skipped;
    ++s.skipped_in_row;
  }
  if (c.scaling.dynamic) adapt_loss_scale(s, c.scaling, finite);
}

}  // namespace athanor
