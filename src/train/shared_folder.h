// Whether all ranks see one save folder: without it rank 0 would miss the others' parts of every checkpoint.
#pragma once
#include <string>

#include "comm/communicator.h"

namespace athanor {

// Rank 0 makes a file in the folder, and all others must see it within `seconds` (file systems over a network may be
// that late); else an Error(usage) on all ranks. The folder must exist on rank 0.
void require_shared_folder(Communicator& ranks, const std::string& folder, double seconds = 5);

}  // namespace athanor
