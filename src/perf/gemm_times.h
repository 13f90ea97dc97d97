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

}  // namespace athanor
