// Advice on model dimensions: GEMMs process whole vectors or tiles, so a dimension that is not a multiple of these
// costs as much as the next multiple. Nothing is changed implicitly; only the vocabulary is padded internally (model/).
#pragma once
#include <string>
#include <vector>

#include "config/model_config.h"

namespace athanor {

struct DimensionAdvice {
  std::string key;     // key of the model config
  int64_t value = 0;   // configured value
  int64_t better = 0;  // the next multiple
  double gain = 0;     // fraction of a token's operations that is padding
};

// Returns GEMM dimensions that are not a multiple of `multiple` elements (Device::dimension_multiple).
std::vector<DimensionAdvice> dimension_advice(const ModelConfig&, int64_t seq_length, int64_t multiple);

// "model.intermediate_size 1530 is not a multiple of 16: its GEMMs cost what 1536 costs, 0.3 % of the step is
// wasted"
std::string to_text(const DimensionAdvice&, int64_t multiple);

}  // namespace athanor
