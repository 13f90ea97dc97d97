// Measures the inputs of a model's linear layers on calibration text: for importance matrices, and for GPTQ.
#pragma once
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "engine/engine.h"
#include "model/importance.h"

namespace athanor {

// The engine computes in host memory in f32 and is committed; during the call its ops are replaced by a decorator
// around `ops`. samples: maximum number of windows, spread over the data; 0: all.
Importance measure_importance(Engine&, Ops& ops, const Dataset&, int64_t samples);

// For each weight the sum over tokens of x x^T, [K, K], of its layer's input x; parts of a fused weight share one
// matrix. Experts' sums are over their tokens; the inputs of their down projections are multiplied by the router's
// weights, as in the GEMM.
using Hessians = std::map<std::string, std::shared_ptr<const std::vector<float>>>;
Hessians measure_hessians(Engine&, Ops& ops, const Dataset&, int64_t samples, const std::set<std::string>& weights);

}  // namespace athanor
