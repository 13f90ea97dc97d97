// Optimizer: declares the states it keeps per parameter and turns gradients into weights. States are allocated, sharded
// and saved by others from the declaration alone.
#pragma once
#include <memory>
#include <vector>

#include "param/param_store.h"

namespace athanor {

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  virtual std::vector<StateSpec> states() const = 0;
  // One step over the part of all units that this rank owns, after StepControl has decided about it; zeroes its
  // gradients.
  virtual void step(Ctx&, ParamStore&, Tensor step_state) = 0;
};

struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
  DType m = DType::f32, v = DType::f32;  // what the moments are kept in: f32 or bf16
  uint64_t seed = 0;                     // of stochastic rounding
};
std::unique_ptr<Optimizer> make_adamw(const AdamWOptions&);

}  // namespace athanor
