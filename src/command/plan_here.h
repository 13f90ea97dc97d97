// plan --ranks N without --gpu: ranks on this machine's CPU, each with the configured threads, at rates measured first.
#pragma once
#include "config/config.h"
#include "plan/rank_plan.h"

namespace athanor {

// Throws Error(usage) unless the configuration's device is the CPU.
void print_ranks_here(const Config&, const ManyRanks&, bool json);

}  // namespace athanor
