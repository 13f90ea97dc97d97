// Sizes of activations, which muP's coordinate check compares over widths [Yang et al. 2022, "Tensor Programs V",
// appendix D.1].
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace athanor {

struct ActivationSize {
  std::string name;  // the weight that the GEMM reads; or "attention 0" and so on
  double rms = 0;    // root mean square
};

// RMS of the outputs of all GEMMs and attentions of an evaluation, in order. Tokens and targets as in
// Engine::evaluate(); the recipe has no 8-bit products. The engine's captured graphs are dropped.
std::vector<ActivationSize> activation_sizes(Engine&, const Backend&, std::span<const int32_t> tokens,
                                             std::span<const int32_t> targets);

// The largest size of an activation over the smallest, of models that differ in width alone; infinite if one is no
// number.
double spread(std::span<const std::vector<ActivationSize>> models, size_t activation);

}  // namespace athanor
