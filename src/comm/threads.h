// Ranks as threads of one process, for tests: the code of many ranks runs on one machine, under sanitizers. Tensors
// must be host memory; every lane runs at once.
#pragma once
#include <functional>

#include "comm/communicator.h"

namespace athanor {

// Runs body once per rank, each on a thread of its own, and returns when all have ended. Rethrows the error of the rank
// that failed first; the other ranks' waits ended with Error(peer_lost) naming that rank.
void run_ranks(int ranks, const std::function<void(std::unique_ptr<Communicator>)>& body);

}  // namespace athanor
