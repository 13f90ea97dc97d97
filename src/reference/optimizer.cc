// The end of a step and AdamW, element by element.
#include <cmath>
#include <cstring>

#include "base/rng.h"
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

// The numbers of both halves of a master; joined and split keep f32, which all of them are.
Values load_master(const AdamW::Part& p) {
  if (p.master.dtype != DType::i16) return load(p.master);
  Values w = load(p.param);
  for (int64_t i = 0; i < w.size(); ++i) w[i] = joined(p.param.as<bf16>()[i], p.master.as<int16_t>()[i]);
  return w;
}

void store_master(const AdamW::Part& p, Values w) {
  if (p.param && p.param.dtype == DType::bf16)
    for (double& x : w.v) x = settled(float(x));
  if (p.param) store(p.param, w);
  if (p.master.dtype != DType::i16) return store(p.master, w);
  for (int64_t i = 0; i < w.size(); ++i) p.master.as<int16_t>()[i] = rest_of(float(w[i]));
}

// What of f32 values a tensor keeps: those of bf16 are rounded up or down with probability in proportion to the
// distance, by the upper half of random(i).
template <class Random>
Values kept(Values x, DType dtype, const Random& random) {
  if (dtype == DType::bf16)
    for (int64_t i = 0; i < x.size(); ++i) x[i] = to_float(round_stochastic(float(x[i]), random(i)));
  return x;
}

void update(const AdamW& op, const AdamW::Part& p, const StepState& s) {
  const Values grad = load(p.grad);
  Values w = load_master(p), m = load(p.m), v = load(p.v);  // [n]
  const double beta1 = momentum_now(op.beta1, s);
  for (int64_t i = 0; i < w.size(); ++i) {
    const double g = grad[i] * double(s.grad_scale), lr = s.lr;
    if (i < p.decayed) w[i] -= lr * op.weight_decay * s.weight_decay_factor * w[i];
    m[i] = beta1 * m[i] + (1 - beta1) * g;
    v[i] = op.beta2 * v[i] + (1 - op.beta2) * g * g;
    w[i] -= lr * (m[i] / double(s.bias1)) / (std::sqrt(v[i] / double(s.bias2)) + op.eps);
  }
  const auto random = [&](uint64_t stream, int64_t i) {
    return random_bits(op.seed, stream, (uint64_t(s.updates) << 40) + p.first + uint64_t(i));
  };
  store_master(p, kept(w, p.master.dtype, [&](int64_t i) { return random(p.stream, i); }));
  store(p.m, kept(m, p.m.dtype, [&](int64_t i) { return random(p.moment_stream, i); }));
  store(p.v, kept(v, p.v.dtype, [&](int64_t i) { return random(p.moment_stream, i) << 16; }));
}

}  // namespace

void ReferenceOps::run(const StepControl& op, void*) {
  StepState s = load_state(op.state);
  close_step(s, op, static_cast<SpikeWindow*>(op.window.data));
  std::memcpy(op.state.data, &s, sizeof s);
}

void ReferenceOps::run(const AdamW& op, void*) {
  const StepState s = load_state(op.state);
  for (const AdamW::Part& p : op.parts) {
    if (!s.skip)
      update(op, p, s);
    else if (p.master.dtype == DType::f32 && p.param)
      store(p.param, load(p.master));
    store(p.grad, zeros_like(p.grad));
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
