// The products of a step, each different one by itself: how often it runs, and how long it takes as training runs it.
#pragma once
#include <vector>

#include "engine/engine.h"
#include "ops/gemm_problem.h"
#include "ops/tuning.h"

namespace athanor {

// Of a training engine, with counts of a whole step and the addresses of the plan; those with most work first.
std::vector<ProductUse> products_of_step(Engine&);

// By the backend's choice; without Tuning on operands of random numbers, which stay in its caches if they fit.
ProductTime time_product(Backend, const ProductUse&);

}  // namespace athanor
