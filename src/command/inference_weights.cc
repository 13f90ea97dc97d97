#include "command/inference_weights.h"

namespace athanor {

void add_weights_option(Verb verb, std::string& word) {
  verb.add_option(
          "--weights", word,
          "linear layers except the head, on the CPU: precision = in the type of the precision; int8 = int8 weights "
          "and row-wise quantized activations; llm_int8 = int8 with activations of 6 and more kept in fp32")
      .show_default()
      .check(one_of({kWeightsAsPrecision, "int8", "llm_int8"}));
}

InferenceWeights inference_weights(const std::string& word, const Machine& machine) {
  if (word == kWeightsAsPrecision) return InferenceWeights::as_precision;
  if (machine.threads() == 0)
    throw Error(cat("--weights: ", word, " works only on the CPU, and this run is on ", machine.description(),
                    "; use --weights precision, or the CPU (eval: --set device=cpu; sample: CUDA_VISIBLE_DEVICES= in "
                    "the environment)"),
                Exit::usage);
  return word == "int8" ? InferenceWeights::int8 : InferenceWeights::llm_int8;
}

}  // namespace athanor
