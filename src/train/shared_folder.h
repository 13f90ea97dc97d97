// Checks that all ranks see the same save folder: otherwise rank 0 would miss other ranks' parts of every checkpoint.
#pragma once
#include <string>

#include "comm/communicator.h"

namespace athanor {

// Rank 0 creates a file in the folder, and all other ranks must see it within `seconds`, since network file systems may
// delay it; otherwise throws Error(usage) on all ranks. The folder must exist on rank 0.
void require_shared_folder(Communicator& ranks, const std::string& folder, double seconds = 5);

}  // namespace athanor
