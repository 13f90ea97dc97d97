// Linear layers in 8 bits, of a model that is only evaluated.
#pragma once
#include "model/model.h"

namespace athanor {

// After declare(), before the plan: freezes all weights and stores the linear layers but the head as `form` says.
// An Error(usage) names a model or a recipe that this is not for.
void store_for_inference(Model&, InferenceWeights form, const Recipe&);

}  // namespace athanor
