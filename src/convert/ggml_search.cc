#include "convert/ggml_blocks.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace athanor {
namespace {

// Sums of the least-squares fit of x by q: sum(w x q) and sum(w q^2).
struct Fit {
  float xq = 0, qq = 0;
};

}  // namespace

float search_symmetric(std::span<const float> x, std::span<const float> weights, int limit, uint8_t* q) {
  float extreme = 0, amax = 0;
  for (const float value : x)
    if (std::fabs(value) > amax) amax = std::fabs(value), extreme = value;
  if (amax < kAllZero) {
    std::fill_n(q, x.size(), uint8_t{0});
    return 0;
  }
  const auto code = [&](float inverse, size_t i) { return std::clamp(nearest_int(inverse * x[i]), -limit, limit - 1); };
  const auto fit = [&](float inverse) {
    Fit sums;
    for (size_t i = 0; i < x.size(); ++i) {
      const auto l = float(code(inverse, i));
      const float w = weights.empty() ? x[i] * x[i] : weights[i];
      sums.xq += w * x[i] * l;
      sums.qq += w * l * l;
    }
    return sums;
  };
  float chosen = -float(limit) / extreme;
  const Fit first = fit(chosen);
  float scale = first.qq != 0 ? first.xq / first.qq : 0.0f, best = scale * first.xq;
  for (int step = -9; step <= 9; ++step) {
    if (step == 0) continue;
    const float inverse = -(float(limit) + 0.1f * float(step)) / extreme;
    const Fit sums = fit(inverse);
    if (!(sums.qq > 0 && sums.xq * sums.xq > best * sums.qq)) continue;
    chosen = inverse;
    scale = sums.xq / sums.qq;
    best = scale * sums.xq;
  }
  for (size_t i = 0; i < x.size(); ++i) q[i] = uint8_t(code(chosen, i) + limit);
  return scale;
}

AffineScale search_affine(std::span<const float> x, std::span<const float> weights, int levels, AffineTrials trials,
                          uint8_t* q) {
  const size_t n = x.size();
  float min = x[0], max = x[0], sum_w = weights[0], sum_x = sum_w * x[0];
  for (size_t i = 1; i < n; ++i) {
    min = std::min(min, x[i]);
    max = std::max(max, x[i]);
    sum_w += weights[i];
    sum_x += weights[i] * x[i];
  }
  min = std::min(min, 0.0f);
  if (max <= min) {
    std::fill_n(q, n, uint8_t{0});
    return {0, -min};
  }
  // q is relative to the best minimum so far.
  const auto quantize = [&](float factor, uint8_t* out) {
    for (size_t i = 0; i < n; ++i) out[i] = uint8_t(std::clamp(nearest_int(factor * (x[i] - min)), 0, levels));
  };
  const auto error = [&](float scale, float offset, const uint8_t* quants) {
    float sum = 0;
    for (size_t i = 0; i < n; ++i) {
      const float diff = scale * float(quants[i]) + offset - x[i];
      sum += weights[i] * (diff * diff);
    }
    return sum;
  };
  const float inverse = float(levels) / (max - min);
  float scale = 1 / inverse;
  quantize(inverse, q);
  float best = error(scale, min, q);
  std::array<uint8_t, 32> quants;
  for (int trial = 0; trial < trials.trials; ++trial) {
    quantize((trials.first + trials.step * float(trial) + float(levels)) / (max - min), quants.data());
    float sum_q = 0, sum_qq = 0, sum_xq = 0;
    for (size_t i = 0; i < n; ++i) {
      const float l = quants[i], wl = weights[i] * l;
      sum_q += wl;
      sum_qq += wl * l;
      sum_xq += wl * x[i];
    }
    const float determinant = sum_w * sum_qq - sum_q * sum_q;
    if (!(determinant > 0)) continue;
    float fitted = (sum_w * sum_xq - sum_x * sum_q) / determinant;
    float offset = (sum_qq * sum_x - sum_q * sum_xq) / determinant;
    if (offset > 0) {
      offset = 0;
      fitted = sum_xq / sum_qq;
    }
    const float left = error(fitted, offset, quants.data());
    if (!(left < best)) continue;
    std::memcpy(q, quants.data(), n);
    best = left;
    scale = fitted;
    min = offset;
  }
  return {scale, -min};
}

float search_positive(std::span<const float> x, std::span<const float> weights, int levels, uint8_t* q) {
  const size_t n = x.size();
  const float max = std::max(0.0f, *std::ranges::max_element(x));
  if (max < kAllZero) {
    std::fill_n(q, n, uint8_t{0});
    return 0;
  }
  const auto error = [&](float inverse) {
    const float scale = 1 / inverse;
    float sum = 0;
    for (size_t i = 0; i < n; ++i) {
      const float diff = x[i] - scale * float(std::min(levels, nearest_int(inverse * x[i])));
      sum += weights[i] * diff * diff;
    }
    return sum;
  };
  float chosen = float(levels) / max, best = error(chosen);
  for (int step = -4; step <= 4; ++step) {
    if (step == 0) continue;
    const float inverse = (0.1f * float(step) + float(levels)) / max;
    const float left = error(inverse);
    if (left < best) best = left, chosen = inverse;
  }
  Fit sums;
  for (size_t i = 0; i < n; ++i) {
    q[i] = uint8_t(std::min(levels, nearest_int(chosen * x[i])));
    const float l = q[i];
    sums.xq += weights[i] * x[i] * l;
    sums.qq += weights[i] * l * l;
  }
  for (int pass = 0; pass < 5; ++pass) {
    bool changed = false;
    for (size_t i = 0; i < n; ++i) {
      const float w = weights[i], l = q[i];
      Fit without{sums.xq - w * x[i] * l, sums.qq - w * l * l};
      if (!(without.xq > 0 && without.qq > 0)) continue;
      const int better = std::min(levels, nearest_int(x[i] * without.qq / without.xq));
      if (better == q[i]) continue;
      without.xq += w * x[i] * float(better);
      without.qq += w * float(better) * float(better);
      if (!(without.xq * without.xq * sums.qq > sums.xq * sums.xq * without.qq)) continue;
      q[i] = uint8_t(better);
      sums = without;
      changed = true;
    }
    if (!changed) break;
  }
  return sums.qq > 0 ? sums.xq / sums.qq : 0.0f;
}

}  // namespace athanor
