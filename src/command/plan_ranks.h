// What many ranks of a run would take, without having them: memory per rank by the plan of a rank, traffic and time by
// a model that docs/distributed.md states.
#pragma once
#include <cstdint>
#include <string>

#include "comm/mesh.h"
#include "config/config.h"

namespace athanor {

struct ManyRanks {
  int ranks = -1;  // 0: a table of 1, 2, 4 ... 1024; negative: not asked for
  int nodes = 0;   // 0: as few as 8 GPUs per node allow
};

// Of rank 0 of ranks that are not there: for plans, which record collectives and make none.
ProcessMesh absent_mesh(const std::array<int, kAxes>& sizes);

void print_many_ranks(const Config&, const std::string& gpu, const ManyRanks&);

}  // namespace athanor
