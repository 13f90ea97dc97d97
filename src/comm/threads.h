// Ranks as threads of one process, for tests: multi-rank code runs on one machine, under sanitizers. Tensors must be in
// host memory; streams run synchronously.
#pragma once
#include <functional>

#include "comm/communicator.h"

namespace athanor {

// Runs body once per rank, each on its own thread, and returns when all have ended. Rethrows the error of the rank that
// failed first; waits of the other ranks throw Error(peer_lost) naming it.
void run_ranks(int ranks, const std::function<void(std::unique_ptr<Communicator>)>& body);

}  // namespace athanor
