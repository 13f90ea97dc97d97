// The distinct GEMMs of a step: how often each runs, and its time when run alone with the addresses of training.
#pragma once
#include <vector>

#include "engine/engine.h"
#include "ops/gemm_problem.h"
#include "ops/tuning.h"

namespace athanor {

// Returns the GEMMs of a training step with their launch counts and planned addresses, most work first.
std::vector<GemmUse> gemms_of_step(Engine&);

// Runs the backend's chosen algorithm; without Tuning, on random operands, which may stay in its caches.
GemmTime time_gemm(Backend, const GemmUse&);

// A distinct grouped GEMM of a step, with rows divided evenly among the experts.
struct GroupedGemmTime {
  GroupedGemm op;
  int64_t launches = 0;
  double seconds = 0;
  double dense_seconds = 0;  // time of one dense GEMM of all rows and the matrix of one expert
};
// Runs each of them as time_gemm() does; most work first.
std::vector<GroupedGemmTime> time_grouped_gemms(Engine&, Backend);

}  // namespace athanor
