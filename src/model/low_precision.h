// Which linear layers of a model a recipe of 8 bits covers. Embedding, norms, attention and loss never belong to them;
// the head does where that is asked for.
#pragma once
#include "model/model.h"

namespace athanor {

// Layers that stay in 16 bits.
struct HighLayers {
  bool head = true;                     // the product that gives logits, and its gradients
  int64_t first = 0, last = 0;          // all of the first and last blocks
  int64_t least = 0;                    // those with fewer inputs or outputs
  std::vector<std::string> match = {};  // and those whose name in files fits one of these patterns (* and ?)
};

// Marks the layers whose products are in 8 bits, before the model is planned, by the sizes of this rank's parts; the
// recipe loses what micro-batches of `tokens` do not allow. Gives back one line that says what stays in 16 bits, and
// why. Throws Error(usage) where a pattern fits no layer, or no layer is left.
std::string choose_low_precision(Model&, Recipe&, const HighLayers&, int64_t tokens, const TensorRank& = {});

}  // namespace athanor
