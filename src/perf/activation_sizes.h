// RMS of activations, which muP's coordinate check compares across widths [Yang et al. 2022, "Tensor Programs V",
// appendix D.1].
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace athanor {

struct ActivationSize {
  std::string name;  // name of the weight that the GEMM reads; or "attention 0" and so on
  double rms = 0;    // root mean square
};

// Returns the RMS of the outputs of all GEMMs and attentions of an evaluation, in order. tokens, targets: as in
// Engine::evaluate(). Not for recipes with FP8 or FP4 GEMMs. Drops the engine's captured graphs.
std::vector<ActivationSize> activation_sizes(Engine&, const Backend&, std::span<const int32_t> tokens,
                                             std::span<const int32_t> targets);

// Returns max over min of an activation's RMS among models that differ only in width; infinite if any RMS is NaN.
double spread(std::span<const std::vector<ActivationSize>> models, size_t activation);

}  // namespace athanor
