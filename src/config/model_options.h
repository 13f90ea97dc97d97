// Finds block options in which two model shapes differ.
#pragma once
#include <string>

#include "config/model_config.h"

namespace athanor {

// The first row of block_fields() in which they differ, with the first shape's value: "hidden_act \"relu2\"", or "" if
// there is none. Ignores initializer_ranges, which does not affect trained weights.
std::string differing_option(const ModelConfig&, const ModelConfig&);

}  // namespace athanor
