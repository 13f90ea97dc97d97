// SparseWeights: matrices that are trained dense while GEMMs read two of every four weights, by SR-STE [Zhou et al.
// 2021, "Learning N:M Fine-grained Structured Sparse Neural Networks From Scratch"]. Which two follows from the
// weights, so there is no mask to keep.
#pragma once
#include "engine/pruned_weights.h"

namespace athanor {

class SparseWeights {
 public:
  // Constructed before the parameters are planned. Throws what pruned_pieces() does.
  SparseWeights(ParamStore&, const PruningOptions&);
  // Once gradients are reduced and StepControl has run: pulls weights that are not read towards zero. Gradients that
  // are clipped are so without it.
  void decay(Ctx&, Tensor step_state) const;

 private:
  ParamStore& params_;
  std::vector<bool> pieces_;
  float decay_;
};

}  // namespace athanor
