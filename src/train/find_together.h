// Looking for a checkpoint on several ranks: rank 0 looks, all ranks hash a share of the files of what it looks at, and
// all learn what it found.
#pragma once
#include <functional>
#include <string>

#include "checkpoint/verify.h"
#include "comm/communicator.h"

namespace athanor {

// Returns on every rank what `find` returned on rank 0, which alone calls it. null: one rank.
using FindFolder = std::function<std::string(const Verify&)>;
std::string find_together(Communicator* control, const FindFolder& find);

}  // namespace athanor
