// Ops of ops/muon.h, element by element.
#include <cmath>
#include <cstring>
#include <vector>

#include "base/rng.h"
#include "reference/reference_ops.h"
#include "reference/values.h"

namespace athanor {

void ReferenceOps::run(const Momentum& op, void*) {
  StepState s;
  std::memcpy(&s, op.state.data, sizeof s);
  const double beta = momentum_now(op.beta, s);
  for (const Momentum::Part& p : op.parts) {
    Values m = load(p.m), grad = load(p.grad);  // [n]
    for (int64_t i = 0; i < m.size(); ++i) {
      const double g = grad[i] * double(s.grad_scale);
      const double next = beta * m[i] + (1 - beta) * g;
      grad[i] = s.skip ? 0 : op.nesterov ? (1 - beta) * g + beta * next : next;
      if (s.skip) continue;
      const uint32_t random =
          random_bits(op.seed, p.moment_stream, (uint64_t(s.updates) << 40) + p.first + uint64_t(i));
      m[i] = p.m.dtype == DType::bf16 ? double(to_float(round_stochastic(float(next), random))) : next;
    }
    store(p.m, m);
    store(p.grad, grad);
  }
}

void ReferenceOps::run(const NormalizeMatrix& op, void*) {
  Values x = load(op.x);
  double sum = 0;
  for (const double v : x.v) sum += v * v;
  const double divisor = op.margin * std::sqrt(sum) + op.eps;
  for (double& v : x.v) v /= divisor;
  store(op.y, x);
}

size_t ReferenceOps::scratch(const Orthogonalize& op) const { return OrthogonalizeWorkspace::of_any(op); }
void ReferenceOps::run(const Orthogonalize& op, void* scratch) {
  for (const Orthogonalize::Matrix& m : op.matrices) run_parts(op, m, scratch, *this);
}

void ReferenceOps::run(const NormalizeNeurons& op, void*) {
  StepState s;
  std::memcpy(&s, op.state.data, sizeof s);
  Values x = load(op.x), v = load(op.v);
  const auto output = [&](int64_t i) { return op.columns ? i % op.x.cols() : i / op.x.cols(); };
  std::vector<double> squares(size_t(op.outputs()));
  for (int64_t i = 0; i < x.size(); ++i) squares[size_t(output(i))] += x[i] * x[i];
  double before = 0, after = 0;
  for (int64_t o = 0; o < op.outputs(); ++o) {
    if (!s.skip) v[o] = float(op.beta * v[o] + (1 - op.beta) * squares[size_t(o)] / double(op.inputs()));
    before += squares[size_t(o)];
    after += squares[size_t(o)] / std::pow(std::sqrt(v[o]) + op.eps, 2);
  }
  const double factor = op.scale * std::sqrt(before) / (std::sqrt(after) + op.eps);
  for (int64_t i = 0; i < x.size(); ++i) x[i] = s.skip ? 0 : x[i] * factor / (std::sqrt(v[output(i)]) + op.eps);
  store(op.v, v);
  store(op.x, x);
}

void ReferenceOps::run(const Combine& op, void*) {
  const Values a = load(op.a), b = op.b ? load(op.b) : zeros_like(op.a);
  Values y = zeros_like(op.y);
  for (int64_t i = 0; i < y.size(); ++i) y[i] = double(op.alpha) * a[i] + (op.b ? double(op.beta) * b[i] : 0);
  store(op.y, y);
}

}  // namespace athanor
