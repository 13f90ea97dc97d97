// Finds a checkpoint on several ranks: rank 0 searches, all ranks hash a share of the files that it examines, and all
// ranks get the result.
#pragma once
#include <functional>
#include <string>

#include "checkpoint/verify.h"
#include "comm/communicator.h"

namespace athanor {

// Calls `find` on rank 0 and returns its result on all ranks. null: one rank.
using FindFolder = std::function<std::string(const Verify&)>;
std::string find_together(Communicator* control, const FindFolder& find);

}  // namespace athanor
