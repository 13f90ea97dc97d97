// What many ranks of a run would take, without having them: memory per rank by the plan of a rank, traffic and time by
// a model that docs/distributed.md states.
#pragma once
#include <cstdint>
#include <string>

#include "config/config.h"

namespace athanor {

struct ManyRanks {
  int ranks = -1;  // 0: a table of 1, 2, 4 ... 1024; negative: not asked for
  int nodes = 0;   // 0: as few as 8 GPUs per node allow
};

void print_many_ranks(const Config&, const std::string& gpu, const ManyRanks&);

}  // namespace athanor
