// Assignment of micro-batches to data-parallel ranks.
#pragma once
#include <cstdint>

namespace athanor {

// Ranks process micro-batches in rotation, in chunks of `chunk` consecutive ones. A worker is a group of consecutive
// ranks that sum their gradients with each other, but not with other workers; it processes a contiguous part of a
// step's micro-batches. Its sequences therefore depend neither on its number of ranks nor on the micro-batch size.
struct MicroBatchOrder {
  int rank = 0, world = 1;  // ranks, or groups of ranks, that process different sequences
  int64_t chunk = 1;
  int workers = 1;
  int64_t per_step = 1;  // micro-batches per rank and step; only read if workers > 1

  // Global index, over all ranks and steps, of this rank's micro-batch number `micro`.
  int64_t number(int64_t micro) const {
    const int64_t ranks = world / workers, step = workers > 1 ? micro / per_step : 0, in_step = micro - step * per_step;
    const int64_t before = (step * workers + rank / ranks) * per_step * ranks;  // 0 with one worker
    return before + (in_step / chunk * ranks + rank % ranks) * chunk + in_step % chunk;
  }
};

}  // namespace athanor
