// The scalars of an op with Adam's two moments, as a kernel argument.
#pragma once
#include "cuda/kernels.h"

namespace athanor::cuda {

struct AdamRule {
  const StepState* state;
  double beta1, beta2, eps, weight_decay, rate;
  uint64_t seed;
  int average1, average2;
  bool coupled, cautious;
};

// An op without a rate or coupled decay does not read them.
template <class Op>
AdamRule adam_rule(const Op& op) {
  AdamRule rule{.state = data<StepState>(op.state),
                .beta1 = op.beta1,
                .beta2 = op.beta2,
                .eps = op.eps,
                .weight_decay = op.weight_decay,
                .rate = 0,
                .seed = op.seed,
                .average1 = op.average1,
                .average2 = op.average2,
                .coupled = false,
                .cautious = op.cautious};
  if constexpr (requires { op.rate; }) rule.rate = op.rate;
  if constexpr (requires { op.coupled; }) rule.coupled = op.coupled;
  return rule;
}

}  // namespace athanor::cuda
