// Checks at the start of a run whether the disk has enough space for the checkpoints that the run will write.
#pragma once
#include <cstdint>
#include <string>

#include "config/config.h"

namespace athanor {

// Facts known at the start of a run, from which the disk space that it needs is computed.
struct DiskAtStart {
  int64_t step = 0;              // current step of the run
  int64_t checkpoint_bytes = 0;  // size of one checkpoint
  int64_t existing = 0;          // number of checkpoints in the save folder
  int64_t free_bytes = 0;
};

// Returns the number of checkpoints that the rest of the run adds to the existing ones: all, or with
// checkpoint.keep_latest_k the max number that exist at one time, at least two, since the newest is kept until the next
// is complete. Time-based saves are not counted.
int64_t checkpoints_to_add(const Config&, const DiskAtStart&);

// Returns a warning with figures and remedies, or "" if the checkpoints fit.
std::string lack_of_disk(const Config&, const DiskAtStart&);

}  // namespace athanor
