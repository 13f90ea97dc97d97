// The option --weights of verbs that run a model without training it.
#pragma once
#include <string>

#include "command/machine.h"
#include "command/options.h"

namespace athanor {

constexpr const char* kWeightsAsPrecision = "precision";
void add_weights_option(Verb, std::string& word);  // word: initially kWeightsAsPrecision
// Throws Error(usage) for int8 on a GPU, which has no int8 GEMMs here.
InferenceWeights inference_weights(const std::string& word, const Machine&);

}  // namespace athanor
