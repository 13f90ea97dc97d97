// plan --ranks N: prints the predicted step of many ranks, and a table of other numbers of ranks.
#pragma once
#include <string>

#include "plan/rank_plan.h"

namespace athanor {

// The cluster of the given ranks, or of one rank per node; prints its assumptions about the GPU and its links. `how`:
// text on how the ranks are divided, ending in a comma, or "".
Cluster print_cluster_of(const Config&, const std::string& gpu, const ManyRanks&, const std::string& how = "");
void print_many_ranks(const Config&, const std::string& gpu, const ManyRanks&);

}  // namespace athanor
