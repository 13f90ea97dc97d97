// Step schedules of the attention window and of the sequence length. Windows: sliding_window_schedule. Sequence length
// warm-up: the length of a sample as a function of its number, by DeepSpeed's fixed_linear schedule of curriculum_type
// seqlen [Li et al. 2022, "The Stability-Efficiency Dilemma"].
#include <algorithm>

#include "base/int.h"
#include "config/config.h"

namespace athanor {

// Chunk length in step k (from 1) of N: min + floor(k / N (seq_length - min)), rounded down to a multiple of
// difficulty_step.
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

int64_t max_chunks(const Config& c) {
  return c.total_curriculum_step > 0 ? div_ceil(c.seq_length, c.min_difficulty) : 1;
}

}  // namespace athanor
