// The ops of ops/adam_mini.h, element by element.
#include <cmath>
#include <cstring>

#include "ops/adam_mini.h"
#include "reference/reference_ops.h"
#include "reference/values.h"

namespace athanor {

void ReferenceOps::run(const OutputSquares& op, void*) {
  for (const OutputSquares::Part& p : op.parts) {
    const Values x = load(p.x);  // [n]
    for (int64_t i = 0; i < x.size(); ++i) p.sums.as<double>()[p.range.output(i)] += x[i] * x[i];
  }
}

void ReferenceOps::run(const BlockMoments& op, void*) {
  StepState s;
  std::memcpy(&s, op.state.data, sizeof s);
  const double c1 = s.corrections[op.average1], c2 = s.corrections[op.average2];
  for (const BlockMoments::Part& p : op.parts) {
    const Values sums = load(p.sums);                     // [S, O]
    Values v = load(p.v), factors(1, p.factors.numel());  // [B], [O]
    const auto block = [&](int64_t o) { return o < p.grouped ? o / p.group : p.grouped / p.group + o - p.grouped; };
    std::vector<double> squares(size_t(v.size())), count(size_t(v.size()));
    for (int64_t o = 0; o < sums.cols; ++o)
      for (int64_t i = 0; i < sums.rows; ++i) {
        squares[size_t(block(o))] += sums(i, o) * std::pow(double(s.grad_scale), 2);
        if (i == 0) count[size_t(block(o))] += double(p.inputs);
      }
    for (int64_t b = 0; b < v.size() && !s.skip; ++b)
      v[b] = float(op.beta2 * v[b] + (1 - op.beta2) * squares[size_t(b)] / count[size_t(b)]);
    for (int64_t o = 0; o < factors.size(); ++o)
      factors[o] = s.skip ? 0 : 1 / c1 / (std::sqrt(v[block(o)] / c2) + op.eps);
    store(p.v, v);
    store(p.factors, factors);
  }
}

void ReferenceOps::run(const ScaleOutputs& op, void*) {
  for (const ScaleOutputs::Part& p : op.parts) {
    const Values factors = load(p.factors);  // [O]
    Values x = load(p.x);                    // [n]
    for (int64_t i = 0; i < x.size(); ++i) x[i] *= factors[p.range.output(i)];
    store(p.x, x);
  }
}

}  // namespace athanor
