// Ops of ops/output_scaling.h, element by element.
#include "ops/output_scaling.h"
#include "reference/reference_ops.h"
#include "reference/values.h"

namespace athanor {

void ReferenceOps::run(const OutputSquares& op, void*) {
  for (const OutputSquares::Part& p : op.parts) {
    const Values x = load(p.x);  // [n]
    for (int64_t i = 0; i < x.size(); ++i) p.sums.as<double>()[p.range.output(i)] += x[i] * x[i];
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
