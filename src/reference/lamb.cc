// Ops of ops/lamb.h, element by element.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/rng.h"
#include "reference/reference_ops.h"
#include "reference/values.h"

namespace athanor {
namespace {

// Returns the trust ratio of a tensor. sums [2, S]: partial sums of the squares of w and of r.
double ratio_of(const Values& sums) {
  double w = 0, r = 0;
  for (int64_t i = 0; i < sums.cols; ++i) w += sums(0, i), r += sums(1, i);
  return w > 0 && r > 0 ? std::sqrt(w) / std::sqrt(r) : 1;
}

}  // namespace

void ReferenceOps::run(const AdamDirection& op, void*) {
  StepState s;
  std::memcpy(&s, op.state.data, sizeof s);
  const double beta1 = momentum_now(op.beta1, s), c1 = s.corrections[op.average1], c2 = s.corrections[op.average2];
  for (const AdamDirection::Part& p : op.parts) {
    const Values w = p.w ? load(p.w) : Values(1, 0);        // [n]
    Values m = load(p.m), v = load(p.v), r = load(p.grad);  // [n]
    const auto kept = [&](double x, DType dtype, uint32_t random) {
      return dtype == DType::bf16 ? double(to_float(round_stochastic(float(x), random))) : x;
    };
    for (int64_t i = 0; i < r.size(); ++i) {
      const double g = r[i] * double(s.grad_scale);
      r[i] = 0;
      if (s.skip) continue;
      const double first = beta1 * m[i] + (1 - beta1) * g, second = op.beta2 * v[i] + (1 - op.beta2) * g * g;
      r[i] = first / c1 / (std::sqrt(second / c2) + op.eps);
      if (p.w && i < p.decayed && !(op.cautious && w[i] * r[i] < 0))
        r[i] += op.weight_decay * s.weight_decay_factor * w[i];
      const uint32_t random =
          random_bits(op.seed, p.moment_stream, (uint64_t(s.updates) << 40) + p.first + uint64_t(i));
      m[i] = kept(first, p.m.dtype, random);
      v[i] = kept(second, p.v.dtype, random << 16);
    }
    store(p.m, m);
    store(p.v, v);
    store(p.grad, r);
  }
}

void ReferenceOps::run(const ScaleByTrustRatio& op, void*) {
  for (const ScaleByTrustRatio::Part& p : op.parts) {
    const double ratio = ratio_of(load(p.sums));
    Values grad = load(p.grad);  // [n]
    for (double& x : grad.v) x *= ratio;
    store(p.grad, grad);
  }
}

void ReferenceOps::run(const AverageTrustRatio& op, void*) {
  StepState s;
  std::memcpy(&s, op.state.data, sizeof s);
  if (s.skip) return;
  for (const AverageTrustRatio::Part& p : op.parts) {
    const double ratio = ratio_of(load(p.sums));
    Values trust = load(p.trust);  // {average, factor}
    trust[0] = trust[0] == 0 ? ratio : 0.9 * trust[0] + 0.1 * ratio;
    store(p.trust, trust);
  }
}

void ReferenceOps::run(const FrozenTrustRatio& op, void*) {
  StepState s;
  std::memcpy(&s, op.state.data, sizeof s);
  for (const FrozenTrustRatio::Part& p : op.parts) {
    const double max = load(p.max)[0];
    Values trust = load(p.trust), sums = load(p.sums);
    sums(0, 0) = sums(1, 0) = 1;
    if (!s.skip) {
      const double last = trust[1] == 0 ? 1 : trust[1];
      trust[1] = max > 0 ? std::clamp(std::clamp(max, 0.5, 4.0), 0.9 * last, 1.1 * last) : last;
      sums(0, 0) = std::pow(trust[0] * trust[1], 2);
      store(p.trust, trust);
    }
    store(p.sums, sums);
  }
}

}  // namespace athanor
