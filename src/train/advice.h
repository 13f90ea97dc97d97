// Advice on the shape of a model: products run in whole vectors or tiles, so that a dimension which is no multiple of
// them costs what the next multiple costs. Nothing is changed behind the user's back; the vocabulary alone is padded
// inside (model/).
#pragma once
#include <string>
#include <vector>

#include "config/model_config.h"

namespace athanor {

struct DimensionAdvice {
  std::string key;     // of the model
  int64_t value = 0;   // as given
  int64_t better = 0;  // the next multiple
  double gain = 0;     // work per time that rounding would gain: the padding's share of all operations of a token
};

// Dimensions of products that are no multiple of `multiple` elements (Device::dimension_multiple).
std::vector<DimensionAdvice> dimension_advice(const ModelConfig&, int64_t seq_length, int64_t multiple);

// "model.intermediate_size 1530 is not a multiple of 16: its products cost what 1536 costs, 0.3 % of the step is
// wasted"
std::string to_text(const DimensionAdvice&, int64_t multiple);

}  // namespace athanor
