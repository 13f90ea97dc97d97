// Results of a training run on one rank; equal curves mean bit-identical runs.
#pragma once
#include <vector>

#include "tests/train/harness.h"

namespace athanor::testing {

struct Curve {
  std::vector<double> losses;
  std::vector<float> norms;
  std::vector<std::byte> weights;
  size_t activations = 0;
  bool operator==(const Curve& b) const { return losses == b.losses && norms == b.norms && weights == b.weights; }
};

inline std::vector<std::byte> weights_of(Rig& rig, Engine& engine) {
  std::vector<std::byte> all;
  for (const auto& unit : engine.model().params().units()) {
    for (const Tensor& t : {unit->master, unit->value}) {
      if (!t) continue;
      const auto part = rig.read<std::byte>({t.data, DType::u8, {int64_t(t.bytes())}});
      all.insert(all.end(), part.begin(), part.end());
    }
  }
  return all;
}

// accumulate(engine, step) runs the micro-batches of a step.
template <class Accumulate>
Curve curve_of(Rig& rig, Engine& engine, int64_t steps, const Accumulate& accumulate) {
  engine.commit();
  engine.init_weights();
  Curve c;
  for (int64_t step = 0; step < steps; ++step) {
    accumulate(engine, step);
    const StepState state = engine.finish_step();
    c.losses.push_back(state.loss);
    c.norms.push_back(state.grad_norm);
  }
  c.weights = weights_of(rig, engine);
  c.activations = engine.memory().total(MemoryKind::activations);
  return c;
}

}  // namespace athanor::testing
