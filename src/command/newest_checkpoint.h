// The step of the newest checkpoint of a run, in memory that `athanor launch` shares with rank 0: restarts are counted
// anew once ranks that were started again wrote a newer checkpoint than all before.
#pragma once
#include <cstdint>

#include "comm/rank_info.h"

namespace athanor {

inline constexpr const char* kNewestCheckpointVariable = "ATHANOR_NEWEST_CHECKPOINT";  // the descriptor's number

// Returns the step, or -1 if none was written.
int64_t read_newest_checkpoint(int descriptor);
// Writes the step if a launcher waits for it; no error of this file may end a run.
void write_newest_checkpoint(const EnvironmentVariables&, int64_t step);

}  // namespace athanor
