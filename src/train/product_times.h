// The products of a step, each different one by itself: how often it runs, and how long it takes as training runs it.
#pragma once
#include <vector>

#include "ops/tuning.h"
#include "train/engine.h"

namespace athanor {

struct ProductUse {
  Gemm op;               // one of them, with the addresses of the plan
  int64_t launches = 0;  // in a step
  int64_t within = 0;    // in a step, as the product within an epilogue that may be done in parts
  bool again = false;    // computed again in backward
};

// Of a training engine with a plan, those with most work first.
std::vector<ProductUse> products_of_step(Engine&);

// By the backend's choice; without Tuning on operands of random numbers, which stay in its caches if they fit.
ProductTime time_product(Backend, const ProductUse&);

}  // namespace athanor
