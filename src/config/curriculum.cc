// Schedules by step, for what attention sees and which tokens are predicted. Windows: sliding_window_schedule. Weights
// of tokens further ahead: multi_token_prediction. Sequence length warm-up: the length of a sample as a function of its
// number, by DeepSpeed's fixed_linear schedule of curriculum_type seqlen [Li et al. 2022, "The Stability-Efficiency
// Dilemma"].
#include <algorithm>

#include "base/int.h"
#include "config/config.h"

namespace athanor {

// Chunk length in step k (from 1) of N: min + floor(k / N (seq_length - min)), rounded down to a multiple of
// curriculum.difficulty_step.
int64_t chunk_length_at(const Config& c, int64_t sample) {
  const int64_t step = c.total_curriculum_step > 0 ? steps_for(c, sample + 1) : 0;
  if (step >= c.total_curriculum_step) return c.seq_length;
  const int64_t length = c.min_difficulty + (c.seq_length - c.min_difficulty) * step / c.total_curriculum_step;
  return length - length % c.difficulty_step;
}

int64_t sliding_window_at(const Config& c, int64_t step) {
  int64_t tokens = c.model.sliding_window;
  for (const WindowStage& stage : c.sliding_window_schedule)
    if (stage.from_step <= step) tokens = stage.tokens;
  return tokens;
}

std::vector<float> ahead_weights_at(const Config& c, int64_t step) {
  std::vector<float> weights;
  for (const AheadToken& token : c.multi_token_prediction) {
    const auto left =
        double(token.decay_end - step) / double(std::max<int64_t>(1, token.decay_end - token.decay_start));
    weights.push_back(float(token.decay_end == 0 ? token.weight : token.weight * std::clamp(left, 0.0, 1.0)));
  }
  return weights;
}

int64_t max_chunks(const Config& c) {
  return c.total_curriculum_step > 0 ? div_ceil(c.seq_length, c.min_difficulty) : 1;
}

}  // namespace athanor
