// Advice on the shape of a model: dimensions that do not fill the machine's vectors or tiles cost what the next round
// one costs. Nothing is changed behind the user's back; the vocabulary alone is padded inside (model/).
#pragma once
#include <string>
#include <vector>

#include "config/model_config.h"

namespace athanor {

struct DimensionAdvice {
  std::string key;     // of the model
  int64_t value = 0;   // as given
  int64_t better = 0;  // the next multiple
  double gain = 0;     // share of matrix parameters, hence of work, that the rounder model has more at the same cost
};

// Dimensions of products that are no multiple of `multiple` elements (Device::dimension_multiple).
std::vector<DimensionAdvice> dimension_advice(const ModelConfig&, int64_t multiple);

// "model.intermediate_size 1530 is not a multiple of 16: 1536 costs the same and is a 0.3 % larger model"
std::string to_text(const DimensionAdvice&, int64_t multiple);

}  // namespace athanor
