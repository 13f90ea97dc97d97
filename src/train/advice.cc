#include "train/advice.h"

#include <cstdio>

#include "base/error.h"
#include "base/int.h"

namespace athanor {
namespace {

// Weights that are multiplied with: all but the look-up tables; a tied table is the head and counts once.
int64_t matrix_parameters(ModelConfig m) {
  m.tie_word_embeddings = true;
  const int64_t positions = m.model_type == ModelType::gpt2 ? m.max_position_embeddings * m.hidden_size : 0;
  return parameter_count(m) - positions;
}

}  // namespace

std::vector<DimensionAdvice> dimension_advice(const ModelConfig& model, int64_t multiple) {
  std::vector<DimensionAdvice> advice;
  const auto consider = [&](const char* key, int64_t value, auto&& rounder_model) {
    if (value % multiple == 0) return;
    const int64_t better = round_up(value, multiple);
    const double gain = double(matrix_parameters(rounder_model(better))) / double(matrix_parameters(model)) - 1;
    advice.push_back({key, value, better, gain});
  };
  const bool heads_make_width = model.head_dim * model.num_attention_heads == model.hidden_size;
  consider("head_dim", model.head_dim, [&](int64_t better) {
    ModelConfig m = model;
    m.head_dim = better;
    if (heads_make_width) m.hidden_size = better * m.num_attention_heads;
    return m;
  });
  // A width made of round heads is round; one made of odd heads is named by the line above.
  if (!heads_make_width) {
    consider("hidden_size", model.hidden_size, [&](int64_t better) {
      ModelConfig m = model;
      m.hidden_size = better;
      return m;
    });
  }
  consider("intermediate_size", model.intermediate_size, [&](int64_t better) {
    ModelConfig m = model;
    m.intermediate_size = better;
    return m;
  });
  return advice;
}

std::string to_text(const DimensionAdvice& a, int64_t multiple) {
  char percent[32];
  std::snprintf(percent, sizeof percent, "%.1f", 100 * a.gain);
  return cat("model.", a.key, " ", a.value, " is not a multiple of ", multiple, ": ", a.better,
             " costs the same and is a ", percent, " % larger model");
}

}  // namespace athanor
