// SparseWeights: matrices that are trained dense while GEMMs read two of every four weights (2:4 sparsity), by SR-STE
// [Zhou et al. 2021, "Learning N:M Fine-grained Structured Sparse Neural Networks From Scratch"]. The choice of the two
// follows from the weights, so no mask is kept.
#pragma once
#include "engine/pruned_weights.h"

namespace athanor {

class SparseWeights {
 public:
  // Construct before the parameters are planned. Throws the errors of pruned_pieces().
  SparseWeights(ParamStore&, const PruningOptions&);
  // Pulls weights that are not read towards zero, after gradients are reduced and StepControl has run. So clipping does
  // not include this term.
  void decay(Ctx&, Tensor step_state) const;

 private:
  ParamStore& params_;
  std::vector<bool> pieces_;
  float decay_;
};

}  // namespace athanor
