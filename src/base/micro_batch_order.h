// Which of the micro-batches of all ranks a rank has.
#pragma once
#include <cstdint>

namespace athanor {

// Ranks take turns of `turn` consecutive micro-batches. Workers, consecutive ranks that do not sum gradients, each have
// a contiguous part of a step's: so a worker's sequences are the same for any number of ranks in it and any
// micro-batches.
struct MicroBatchOrder {
  int rank = 0, world = 1;  // ranks, or groups of them, that have different sequences
  int64_t turn = 1;
  int workers = 1;
  int64_t per_step = 1;  // micro-batches of a rank in a step; read where there are several workers

  // Number of this rank's micro-batch `micro`, counted over all steps, among those of all ranks.
  int64_t number(int64_t micro) const {
    const int64_t ranks = world / workers, step = workers > 1 ? micro / per_step : 0, in_step = micro - step * per_step;
    const int64_t before = (step * workers + rank / ranks) * per_step * ranks;  // 0 with one worker
    return before + (in_step / turn * ranks + rank % ranks) * turn + in_step % turn;
  }
};

}  // namespace athanor
