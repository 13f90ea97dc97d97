// StepControl and the update rules, element by element.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/rng.h"
#include "ops/qk_clip.h"
#include "ops/step_control.h"
#include "reference/reference_ops.h"
#include "reference/values.h"

namespace athanor {
namespace {

StepState load_state(const Tensor& t) {
  StepState s;
  std::memcpy(&s, t.data, sizeof s);
  return s;
}

// Returns the master weights of a part; i16 remainders are joined with the weights, which gives exact f32 values.
Values load_master(const UpdatePart& p) {
  if (p.master.dtype != DType::i16) return load(p.master);
  Values w = load(p.param);
  for (int64_t i = 0; i < w.size(); ++i) w[i] = joined(p.param.as<bf16>()[i], p.master.as<int16_t>()[i]);
  return w;
}

void store_master(const UpdatePart& p, Values w) {
  if (p.param && p.param.dtype == DType::bf16)
    for (double& x : w.v) x = settled(float(x));
  if (p.param) store(p.param, w);
  if (p.master.dtype != DType::i16) return store(p.master, w);
  for (int64_t i = 0; i < w.size(); ++i) p.master.as<int16_t>()[i] = rest_of(float(w[i]));
}

// Returns values as stored in a tensor of `dtype`: bf16 is rounded stochastically with the upper half of random(i); f32
// is unchanged.
template <class Random>
Values kept(Values x, DType dtype, const Random& random) {
  if (dtype == DType::bf16)
    for (int64_t i = 0; i < x.size(); ++i) x[i] = to_float(round_stochastic(float(x[i]), random(i)));
  return x;
}

// Runs one step of a part: calls rule(w, m, v, g, i) for each element; absent states are 0.
template <class Op, class Rule>
void update_part(const Op& op, const UpdatePart& p, const StepState& s, const Rule& rule) {
  const Values grad = load(p.grad);
  Values w = load_master(p);                            // [n]
  Values m = p.m ? load(p.m) : Values(1, grad.size());  // [n]
  Values v = p.v ? load(p.v) : Values(1, grad.size());  // [n]
  for (int64_t i = 0; i < w.size(); ++i)
    rule(w[i], m[i], v[i], grad[i], i < p.decayed ? op.weight_decay * s.weight_decay_factor : 0);
  const auto random = [&](uint64_t stream, int64_t i) {
    return random_bits(op.seed, stream, (uint64_t(s.updates) << 40) + p.first + uint64_t(i));
  };
  store_master(p, kept(w, p.master.dtype, [&](int64_t i) { return random(p.stream, i); }));
  if (p.m) store(p.m, kept(m, p.m.dtype, [&](int64_t i) { return random(p.moment_stream, i); }));
  if (p.v) store(p.v, kept(v, p.v.dtype, [&](int64_t i) { return random(p.moment_stream, i) << 16; }));
}

// Returns a weight after step u and weight decay.
template <class Op>
double decayed(const Op& op, double w, double u, double lr, double decay) {
  return (op.cautious && w * u < 0 ? w : w - lr * decay * w) - u;
}

// Quantizes to the map value nearest to x / amax of its block, by exhaustive search; ties go to the larger value. With
// the unsigned map only 0 itself becomes 0.
void store_quantized(const DynamicMap& map, const Values& x, const Tensor& quantized, const Tensor& scales) {
  for (int64_t block = 0; block < scales.numel(); ++block) {
    double most = 0;
    for (int64_t i = block * kMomentBlock; i < (block + 1) * kMomentBlock; ++i) most = std::max(most, std::abs(x[i]));
    scales.as<float>()[block] = float(most);
    for (int64_t i = block * kMomentBlock; i < (block + 1) * kMomentBlock; ++i) {
      const auto share = most > 0 ? double(float(x[i] / most)) : 0.0;
      int best = 0;
      for (int code = 1; code < 256; ++code)
        if (std::abs(map.value[code] - share) <= std::abs(map.value[best] - share)) best = code;
      if (best == 0 && map.value[0] == 0 && x[i] > 0) best = 1;
      quantized.as<uint8_t>()[i] = uint8_t(best);
    }
  }
}

// rule(state) returns the function that update_part() takes.
template <class Op, class Rule>
void update(const Op& op, const Rule& rule) {
  const StepState s = load_state(op.state);
  for (const UpdatePart& p : op.parts) {
    if (!s.skip)
      update_part(op, p, s, rule(s));
    else if (p.master.dtype == DType::f32 && p.param)
      store(p.param, load(p.master));
    store(p.grad, zeros_like(p.grad));
  }
}

}  // namespace

void ReferenceOps::run(const StepControl& op, void*) {
  StepState s = load_state(op.state);
  float max_attention_logit = 0;
  if (op.scores) {
    const Values scores = load(op.scores);
    max_attention_logit = float(*std::max_element(scores.v.begin(), scores.v.end()));
  }
  close_step(s, op, static_cast<SpikeWindow*>(op.window.data), max_attention_logit);
  std::memcpy(op.state.data, &s, sizeof s);
}

void ReferenceOps::run(const AdamW& op, void*) {
  update(op, [&](const StepState& s) {
    const double lr = s.lr * op.rate, c1 = s.corrections[op.average1], c2 = s.corrections[op.average2];
    const double beta1 = momentum_now(op.beta1, s), scale = s.grad_scale;
    return [&op, lr, c1, c2, beta1, scale](double& w, double& m, double& v, double grad, double decay) {
      double g = grad * scale;
      if (op.coupled) g += decay * w;
      m = beta1 * m + (1 - beta1) * g;
      v = op.beta2 * v + (1 - op.beta2) * g * g;
      const double u = lr * (m / c1) / (std::sqrt(v / c2) + op.eps);
      w = op.coupled ? w - u : decayed(op, w, u, lr, decay);
    };
  });
}

void ReferenceOps::run(const AdamW8bit& op, void*) {
  const StepState s = load_state(op.state);
  const double lr = s.lr * op.rate, c1 = s.corrections[op.average1], c2 = s.corrections[op.average2];
  const double beta1 = momentum_now(op.beta1, s);
  // Rounds to f32; after a single operation on f32 numbers this gives the f32 result.
  const auto f = [](double x) { return double(float(x)); };
  for (const AdamW8bit::Part& p : op.parts) {
    const UpdatePart weights = p.weights();
    const Values grad = load(p.grad);
    store(p.grad, zeros_like(p.grad));
    if (s.skip) {
      if (p.master.dtype == DType::f32 && p.param) store(p.param, load(p.master));
      continue;
    }
    Values w = load_master(weights), m = Values(1, w.size()), v = Values(1, w.size());  // [n]
    for (int64_t i = 0; i < w.size(); ++i) {
      const int64_t block = i / kMomentBlock;
      m[i] = f(double(kSignedMap.value[p.m.as<uint8_t>()[i]]) * double(p.m_scale.as<float>()[block]));
      v[i] = f(double(kUnsignedMap.value[p.v.as<uint8_t>()[i]]) * double(p.v_scale.as<float>()[block]));
      const double g = f(grad[i] * double(s.grad_scale));
      m[i] = f(f(f(beta1) * m[i]) + f(f(1 - beta1) * g));
      v[i] = f(f(f(op.beta2) * v[i]) + f(f(f(1 - op.beta2) * g) * g));
      const double decay = i < p.decayed ? op.weight_decay * s.weight_decay_factor : 0;
      w[i] = decayed(op, w[i], lr * (m[i] / c1) / (std::sqrt(v[i] / c2) + op.eps), lr, decay);
    }
    const auto random = [&](uint64_t stream, int64_t i) {
      return random_bits(op.seed, stream, (uint64_t(s.updates) << 40) + p.first + uint64_t(i));
    };
    store_master(weights, kept(w, p.master.dtype, [&](int64_t i) { return random(p.stream, i); }));
    store_quantized(kSignedMap, m, p.m, p.m_scale);
    store_quantized(kUnsignedMap, v, p.v, p.v_scale);
  }
}

void ReferenceOps::run(const Sgd& op, void*) {
  update(op, [&](const StepState& s) {
    const double lr = s.lr * op.rate, scale = op.direction ? 1.0 : double(s.grad_scale);
    const double momentum = op.momentum > 0 ? momentum_now(op.momentum, s) : 0;
    return [&op, lr, scale, momentum](double& w, double& m, double&, double grad, double decay) {
      double g = grad * scale;
      if (!op.direction) g += decay * w;
      if (op.momentum > 0) {
        m = momentum * m + g;
        g = op.nesterov ? g + momentum * m : m;
      }
      w = op.direction ? decayed(op, w, lr * g, lr, decay) : w - lr * g;
    };
  });
}

void ReferenceOps::run(const Lion& op, void*) {
  update(op, [&](const StepState& s) {
    const double lr = s.lr * op.rate, scale = s.grad_scale, beta1 = momentum_now(op.beta1, s);
    return [&op, lr, scale, beta1](double& w, double& m, double&, double grad, double decay) {
      const double g = grad * scale, c = beta1 * m + (1 - beta1) * g;
      w = decayed(op, w, lr * (c > 0 ? 1 : c < 0 ? -1 : 0), lr, decay);
      m = op.beta2 * m + (1 - op.beta2) * g;
    };
  });
}

// Computes x and z explicitly, unlike the op's formula.
void ReferenceOps::run(const ScheduleFreeAdamW& op, void*) {
  update(op, [&](const StepState& s) {
    const double lr = s.lr * op.rate, c = 1 / double(s.corrections[op.average1]), c2 = s.corrections[op.average2];
    const double scale = s.grad_scale;
    return [&op, lr, c, c2, scale](double& y, double& m, double& v, double grad, double decay) {
      const double g = grad * scale;
      v = op.beta2 * v + (1 - op.beta2) * g * g;
      double u = g / (std::sqrt(v / c2) + op.eps);
      if (!op.cautious || y * u >= 0) u += decay * y;
      const double x = y + m, z = y - op.beta1 / (1 - op.beta1) * m - lr * u;
      const double ahead = (1 - c) * (x - z);  // new average minus z
      y = z + op.beta1 * ahead;
      m = (1 - op.beta1) * ahead;
    };
  });
}

void ReferenceOps::run(const QkClip& op, void*) {
  const StepState s = load_state(op.state);
  if (s.skip) return;
  const int64_t queries = op.heads * op.head_dim, keys = op.kv_heads * op.head_dim;
  const bool shared = op.heads != op.kv_heads;
  for (const QkClip::Part& p : op.parts) {
    const UpdatePart part = p.weights();
    const Values top = load(p.top);           // [H]
    Values w = load_master(part);             // [n]
    Values also = p.also ? load(p.also) : w;  // [n]
    for (int64_t i = 0; i < w.size(); ++i) {
      const int64_t at = p.range.first + i, output = p.range.columns ? at % p.range.cols : at / p.range.cols;
      const bool of_query = output < queries, of_key = !of_query && output < queries + keys;
      if (!of_query && (shared || !of_key)) continue;
      const double most = top[(of_query ? output : output - queries) / op.head_dim];
      if (most <= op.threshold) continue;
      const double factor = std::pow(op.threshold / most, shared ? 1 : 0.5);
      const double x = double(float(w[i])) * double(float(factor));
      w[i] = p.master.dtype == DType::bf16
                 ? to_float(round_stochastic(
                       float(x), random_bits(op.seed, p.stream, (uint64_t(s.updates) << 40) + p.first + uint64_t(i))))
                 : x;
      also[i] *= factor;
    }
    store_master(part, w);
    if (p.also) store(p.also, also);
  }
}

void ReferenceOps::run(const Ema& op, void*) {
  const StepState s = load_state(op.state);
  if (s.skip) return;
  const double rate = (1 - op.decay) / s.corrections[op.average];
  for (const Ema::Part& p : op.parts) {
    const Values w = load_master({.master = p.master, .param = p.param});  // [n]
    Values average = load(p.average);                                      // [n]
    for (int64_t i = 0; i < w.size(); ++i) average[i] += rate * (w[i] - average[i]);
    store(p.average, average);
  }
}

void ReferenceOps::run(const SplitMaster& op, void*) {
  Values w = load(op.master);
  for (double& x : w.v) x = settled(float(x));
  store(op.master, w);
  store(op.param, w);
  for (int64_t i = 0; op.rest && i < w.size(); ++i) op.rest.as<int16_t>()[i] = rest_of(float(w[i]));
}

void ReferenceOps::run(const JoinMaster& op, void*) {
  for (int64_t i = 0; i < op.master.numel(); ++i)
    op.master.as<float>()[i] = joined(op.param.as<bf16>()[i], op.rest.as<int16_t>()[i]);
}

std::unique_ptr<Ops> make_reference() { return std::make_unique<ReferenceOps>(); }

}  // namespace athanor
