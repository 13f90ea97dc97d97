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

// Rounds to bf16 up or down with probability in proportion to the distance; the values stay exact in f32.
Values stochastically_rounded(Values x, const AdamW& op, uint64_t updates) {
  for (int64_t i = 0; i < x.size(); ++i) {
    const uint32_t bits = random_bits(op.seed, op.stream, (updates << 40) + op.first + uint64_t(i));
    x[i] = to_float(round_stochastic(float(x[i]), bits));
  }
  return x;
}

}  // namespace

void ReferenceOps::run(const StepControl& op, void*) {
  StepState s = load_state(op.state);
  close_step(s, op);
  std::memcpy(op.state.data, &s, sizeof s);
}

void ReferenceOps::run(const AdamW& op, void*) {
  const StepState s = load_state(op.state);
  const Values grad = load(op.grad);
  Values w = load(op.master), m = load(op.m), v = load(op.v);  // [n]
  if (!s.skip) {
    for (int64_t i = 0; i < w.size(); ++i) {
      const double g = grad[i] * double(s.grad_scale), lr = s.lr;
      if (i < op.decayed) w[i] -= lr * op.weight_decay * w[i];
      m[i] = op.beta1 * m[i] + (1 - op.beta1) * g;
      v[i] = op.beta2 * v[i] + (1 - op.beta2) * g * g;
      w[i] -= lr * (m[i] / double(s.bias1)) / (std::sqrt(v[i] / double(s.bias2)) + op.eps);
    }
    if (op.master.dtype == DType::bf16) w = stochastically_rounded(w, op, uint64_t(s.updates));
    store(op.master, w);
    store(op.m, m);
    store(op.v, v);
  }
  if (op.param) store(op.param, load(op.master));
  store(op.grad, zeros_like(op.grad));
}

std::unique_ptr<Ops> make_reference() { return std::make_unique<ReferenceOps>(); }

}  // namespace athanor
