// The arithmetic of StepControl and the learning-rate schedules; every backend calls the same functions.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "ops/optimizer.h"

namespace athanor {
namespace {

double decayed(const Schedule& s, double progress) {  // progress in [0, 1] from lr to min_lr
  switch (s.style) {
    case DecayStyle::linear:
      return s.lr + (s.min_lr - s.lr) * progress;
    case DecayStyle::cosine:  // [Loshchilov & Hutter 2017, eq. 5]
      return s.min_lr + (s.lr - s.min_lr) * 0.5 * (1 + std::cos(std::numbers::pi * progress));
    default:
      return s.lr;
  }
}

double wsd_decayed(const Schedule& s, double progress) {  // [Hu et al. 2024 (MiniCPM); Hagele et al. 2024: 1 - sqrt]
  const double span = s.lr - s.min_lr;
  switch (s.wsd) {
    case WsdDecay::linear:
      return s.lr - span * progress;
    case WsdDecay::cosine:
      return s.min_lr + span * 0.5 * (1 + std::cos(std::numbers::pi * progress));
    case WsdDecay::minus_sqrt:
      return s.lr - span * std::sqrt(progress);
  }
  return s.lr;
}

}  // namespace

double learning_rate(const Schedule& s, int64_t step) {
  if (step < s.warmup) return s.lr * double(step + 1) / double(s.warmup);
  if (s.style == DecayStyle::constant) return s.lr;
  if (step >= s.decay) return s.min_lr;
  if (s.style == DecayStyle::wsd) {
    const int64_t start = s.decay - s.wsd_decay;
    return step < start ? s.lr : wsd_decayed(s, double(step - start) / double(s.wsd_decay));
  }
  return decayed(s, double(step - s.warmup) / double(std::max<int64_t>(1, s.decay - s.warmup)));
}

void close_step(StepState& s, const StepControl& c) {
  const double inv_scale = 1.0 / double(s.loss_scale);
  const double norm = std::sqrt(s.norm_sq) * inv_scale;
  const bool finite = std::isfinite(norm) && std::isfinite(s.loss_sum);
  s.loss = s.loss_sum;
  s.grad_norm = float(norm);
  s.loss_sum = 0;
  s.norm_sq = 0;
  s.skip = finite ? 0 : 1;
  s.lr = float(learning_rate(c.schedule, s.updates));
  if (finite) {
    const double clip =
        c.clip_grad > 0 ? std::min(1.0, c.clip_grad / (norm + 1e-6)) : 1.0;  // eps as torch's clip_grad_norm_
    s.grad_scale = float(inv_scale * clip);
    ++s.updates;
    s.skipped_in_row = 0;
    s.bias1 = float(1 - std::pow(c.beta1, double(s.updates)));
    s.bias2 = float(1 - std::pow(c.beta2, double(s.updates)));
  } else {
    s.grad_scale = 0;
    ++s.skipped;
    ++s.skipped_in_row;
  }
  if (!c.scaling.dynamic) return;
  if (finite) {
    if (++s.good_steps >= c.scaling.window) {
      s.loss_scale = std::min(s.loss_scale * 2, 0x1p60f);
      s.good_steps = 0;
      s.hysteresis_left = c.scaling.hysteresis;
    }
  } else {
    s.good_steps = 0;
    if (--s.hysteresis_left <= 0) {
      s.loss_scale = std::max(s.loss_scale * 0.5f, c.scaling.min_scale);
      s.hysteresis_left = 1;  // keeps halving until a full window of good steps
    }
  }
}

}  // namespace athanor
