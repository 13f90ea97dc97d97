// How two model shapes differ in the options of blocks.
#pragma once
#include <string>

#include "config/model_config.h"

namespace athanor {

// The first row of block_fields() in which they differ, with its value in the first: "hidden_act \"relu2\"", or "". Not
// initializer_ranges, which says nothing about trained weights.
std::string differing_option(const ModelConfig&, const ModelConfig&);

}  // namespace athanor
