// Gradient noise scale B = tr(S) / |G|^2, where G is the mean gradient and S the covariance of single-token gradients:
// batches much smaller than B lose no token efficiency, and batches much larger than B gain nothing per step. Estimated
// from the squared norms of the mean gradients of a small and a large batch; numerator and denominator are averaged
// over steps separately. [McCandlish et al. 2018, "An Empirical Model of Large-Batch Training", appendix A.1]
#pragma once
#include <cmath>
#include <optional>

namespace athanor {

struct BatchGradient {
  double tokens;
  double norm_sq;  // squared norm of the mean gradient
};

class NoiseScale {
 public:
  NoiseScale() = default;
  NoiseScale(double signal, double noise) : signal_(signal), noise_(noise) {}  // continues from earlier averages
  double signal() const { return signal_; }
  double noise() const { return noise_; }
  void add(BatchGradient small, BatchGradient large) {
    const double signal = (large.tokens * large.norm_sq - small.tokens * small.norm_sq) / (large.tokens - small.tokens);
    const double noise = (small.norm_sq - large.norm_sq) / (1 / small.tokens - 1 / large.tokens);
    if (!std::isfinite(signal) || !std::isfinite(noise)) return;
    signal_ = kDecay * signal_ + (1 - kDecay) * signal;
    noise_ = kDecay * noise_ + (1 - kDecay) * noise;
  }
  // The noise scale in tokens; nullopt before the first step, or if either average is not positive, which noise can
  // cause.
  std::optional<double> tokens() const {
    if (!(signal_ > 0 && noise_ > 0)) return std::nullopt;
    return noise_ / signal_;
  }

 private:
  static constexpr double kDecay = 0.99;
  double signal_ = 0, noise_ = 0;  // both start at 0, so the ratio needs no bias correction
};

}  // namespace athanor
