// SparseWeights: matrices that are trained dense while GEMMs read two of every four weights (2:4 sparsity), by SR-STE
// [Zhou et al. 2021, "Learning N:M Fine-grained Structured Sparse Neural Networks From Scratch"]. The weights determine
// which two are read, so no mask is stored.
#pragma once
#include "engine/pruned_weights.h"

namespace athanor {

class SparseWeights {
 public:
  // Construct before the parameters are planned. Throws the same errors as pruned_pieces().
  SparseWeights(ParamStore&, const PruningOptions&);
  // Pulls the weights that GEMMs do not read towards zero. Call after gradients are reduced and StepControl has run, so
  // that clipping does not include this term.
  void decay(Ctx&, Tensor step_state) const;

 private:
  ParamStore& params_;
  std::vector<bool> pieces_;
  float decay_;
};

}  // namespace athanor
