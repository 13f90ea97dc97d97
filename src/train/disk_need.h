// Whether the disk has room for the checkpoints that a run will write, asked at its start.
#pragma once
#include <cstdint>
#include <string>

#include "config/config.h"

namespace athanor {

// What is known at the start of a run.
struct DiskAtStart {
  int64_t step = 0;              // the run's
  int64_t checkpoint_bytes = 0;  // of one
  int64_t existing = 0;          // checkpoints in the save folder
  int64_t free_bytes = 0;
};

// Checkpoints that the rest of the run adds to the existing ones: all, or with keep_latest_k those that are there at
// the same time, at least two, since the newest stays until the next is whole. Saves by the clock are not counted.
int64_t checkpoints_to_add(const Config&, const DiskAtStart&);

// A warning with figures and remedies, or "" if they fit.
std::string lack_of_disk(const Config&, const DiskAtStart&);

}  // namespace athanor
