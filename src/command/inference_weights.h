// --weights of the verbs that compute with a model and do not train it.
#pragma once
#include <string>

#include "command/machine.h"
#include "command/options.h"

namespace athanor {

constexpr const char* kWeightsAsPrecision = "precision";
void add_weights_option(Verb, std::string& word);  // word: kWeightsAsPrecision at first
// An Error(usage) on a GPU, where there are no GEMMs of int8.
InferenceWeights inference_weights(const std::string& word, const Machine&);

}  // namespace athanor
