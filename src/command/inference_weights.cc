#include "command/inference_weights.h"

namespace athanor {

void add_weights_option(Verb verb, std::string& word) {
  verb.add_option("--weights", word,
                  "linear layers but the head, on the CPU: precision = in the type of the precision; int8 = in 8 bits, "
                  "with activations quantized row by row; llm_int8 = the same with activations of 6 and more apart")
      .show_default()
      .check(one_of({kWeightsAsPrecision, "int8", "llm_int8"}));
}

InferenceWeights inference_weights(const std::string& word, const Machine& machine) {
  if (word == kWeightsAsPrecision) return InferenceWeights::as_precision;
  if (machine.threads() == 0)
    throw Error(cat("--weights: ", word, " is for the CPU, and this is ", machine.description(),
                    "; take precision, or the CPU (eval: --set device=cpu; sample: CUDA_VISIBLE_DEVICES= in the "
                    "environment)"),
                Exit::usage);
  return word == "int8" ? InferenceWeights::int8 : InferenceWeights::llm_int8;
}

}  // namespace athanor
