// The end of a step, implemented once for all backends: the rule of StepControl.
#pragma once
#include <cmath>

#include "base/host_device.h"
#include "ops/optimizer.h"

namespace athanor {

// fp16 only: doubles the loss scale after a window of good steps, halves it once bad steps exhaust the hysteresis.
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

// Returns the z-score of x against a full window; 0 if all values in the window are equal.
ATHANOR_HOST_DEVICE inline double deviations_above(const float* window, double x) {
  constexpr auto kCount = double(SpikeWindow::kSteps);
  double mean = 0, square = 0;
  for (int64_t i = 0; i < SpikeWindow::kSteps; ++i) mean += double(window[i]);
  mean /= kCount;
  for (int64_t i = 0; i < SpikeWindow::kSteps; ++i) square += (double(window[i]) - mean) * (double(window[i]) - mean);
  return square > 0 ? (x - mean) / std::sqrt(square / kCount) : 0;
}

// Applies SpikeRule to a step with finite numbers.
ATHANOR_HOST_DEVICE inline void judge(StepState& s, const SpikeRule& rule, SpikeWindow& window, double loss) {
  const bool full = window.count >= SpikeWindow::kSteps;
  s.loss_deviations = full ? float(deviations_above(window.loss, loss)) : 0;
  s.norm_deviations = full ? float(deviations_above(window.norm, double(s.grad_norm))) : 0;
  const bool stands_out = double(s.loss_deviations) > rule.deviations || double(s.norm_deviations) > rule.deviations;
  if (stands_out && s.spikes_in_row < rule.most_in_row) {
    s.spike = 1;
    ++s.spikes;
    ++s.spikes_in_row;
    return;
  }
  s.spike = stands_out ? 2 : 0;
  s.spikes_in_row = 0;
  window.loss[window.count % SpikeWindow::kSteps] = float(loss);
  window.norm[window.count % SpikeWindow::kSteps] = s.grad_norm;
  ++window.count;
}

// Returns StepState::corrections for an average, after an update.
ATHANOR_HOST_DEVICE inline float correction_of(const Average& average, StepState& s, double lr) {
  switch (average.weighting) {
    case Weighting::decaying: {
      const double decay = average.momentum ? momentum_now(average.decay, s) : average.decay;
      return float(1 - std::pow(decay, double(s.updates < average.end ? s.updates : average.end)));
    }
    case Weighting::equal:
      return s.updates > average.start ? float(s.updates - average.start) : 1.f;
    case Weighting::squared_rate: {
      s.peak_lr = lr > s.peak_lr ? lr : s.peak_lr;
      const double weight = s.peak_lr * s.peak_lr;
      s.squared_lr_sum += weight;
      return weight > 0 ? float(s.squared_lr_sum / weight) : 1.f;
    }
  }
  return 1;
}

// Applies the rule of StepControl. window: null if absent. max_attention_logit: the maximum of `scores`, or 0 without
// them.
ATHANOR_HOST_DEVICE inline void close_step(StepState& s, const StepControl& c, SpikeWindow* window = nullptr,
                                           float max_attention_logit = 0) {
  s.max_attention_logit = max_attention_logit;
  // Rescales gradients to the mean over targets, like PyTorch's cross_entropy with ignore_index; a step without targets
  // is not rescaled. Without ignored targets the factor is exactly 1.
  const double mean = c.divided_by > 0 && s.targets > 0 ? c.divided_by / s.targets : 1;
  const double inv_scale = mean / double(s.loss_scale);
  const double norm = std::sqrt(s.norm_sq / double(c.workers)) * inv_scale;
  const bool finite = std::isfinite(norm) && std::isfinite(s.loss_sum);
  s.loss = s.loss_sum;
  s.loss_targets = s.targets;
  s.distill = s.distill_sum;
  s.grad_norm = float(norm);
  s.micro_norm = std::sqrt(s.micro_norm_sq) * inv_scale;
  s.loss_sum = 0;
  s.targets = 0;
  s.norm_sq = s.micro_norm_sq = s.distill_sum = 0;
  s.spike = 0;
  s.loss_deviations = s.norm_deviations = 0;
  if (window && finite && std::isfinite(s.grad_norm) && s.loss_targets > 0)
    judge(s, c.spikes, *window, s.loss / s.loss_targets);
  s.skip = finite && s.spike != 1 ? 0 : 1;
  const StepRates rates = step_rates(c.schedule, s.updates);
  s.lr = float(rates.lr);
  s.momentum_low = rates.momentum_low;
  s.low_momentum = c.schedule.low_momentum;
  s.weight_decay_factor = rates.weight_decay;
  if (finite) s.skipped_in_row = 0;
  if (s.skip == 0) {
    const double fit = c.clip_grad / (norm + 1e-6);  // eps as in torch's clip_grad_norm_
    s.grad_scale = float(inv_scale * (c.clip_grad > 0 && fit < 1 ? fit : 1));
    ++s.updates;
    for (int i = 0; i < kMostAverages; ++i) s.corrections[i] = correction_of(c.averages[i], s, rates.lr);
  } else {
    s.grad_scale = 0;
    ++s.skipped;
    if (!finite) ++s.skipped_in_row;
  }
  if (c.scaling.dynamic) adapt_loss_scale(s, c.scaling, finite);
}

}  // namespace athanor
