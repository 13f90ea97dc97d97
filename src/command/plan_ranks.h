// What many ranks of a run would take, without having them: memory per rank by the plan of a rank, traffic and time by
// a model that docs/distributed.md states.
#pragma once
#include <cstdint>
#include <string>

#include "config/config.h"

namespace athanor {

struct ManyRanks {
  int ranks = 0;  // 0: a table of 1, 2, 4 ... 1024
  int nodes = 0;  // 0: as few as 8 GPUs per node allow
  std::string gpu;
};

void print_many_ranks(const Config&, const ManyRanks&);

}  // namespace athanor
