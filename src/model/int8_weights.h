// Int8 linear layers of a model that is not trained.
#pragma once
#include "model/model.h"

namespace athanor {

// Call after declare() and before plan(): freezes all weights and stores the linear layers except the head in the given
// form. Throws Error(usage) for models and recipes that do not support it.
void store_for_inference(Model&, InferenceWeights form, const Recipe&);

}  // namespace athanor
