// Selects the linear layers of a model that an FP8 or FP4 recipe quantizes. Embedding, norms, attention and loss are
// never quantized; the head only if configured.
#pragma once
#include "model/model.h"

namespace athanor {

// Layers that stay in bf16.
struct HighLayers {
  bool head = true;                     // the LM head, with its gradients
  int64_t first = 0, last = 0;          // all layers of the first and the last blocks
  int64_t least = 0;                    // layers with fewer inputs or outputs
  std::vector<std::string> match = {};  // layers whose name in files matches a pattern (* and ?)
};

// Marks the layers whose GEMMs are quantized, by the sizes of this rank's parts; call before the model is planned.
// Weight gradients stay in bf16 in `recipe` if the number of `tokens` of a micro-batch does not allow quantizing them.
// Returns one line that says which layers stay in bf16 and why. Throws Error(usage) if a pattern matches no layer, or
// no layer is left to quantize.
std::string choose_low_precision(Model&, Recipe&, const HighLayers&, int64_t tokens, const TensorRank& = {});

}  // namespace athanor
