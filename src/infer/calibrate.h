// Measures what the linear layers of a model read on calibration text: for importance matrices, and for GPTQ.
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

// The engine computes on host memory in f32 and is committed; its ops are replaced for the time of the call by `ops`
// with a decorator around. samples: maximum number of windows, spread over the data; 0: all.
Importance measure_importance(Engine&, Ops& ops, const Dataset&, int64_t samples);

// Sum over tokens of x x^T for the inputs x of each of the weights, [K, K]; parts of a fused weight share theirs.
using Hessians = std::map<std::string, std::shared_ptr<const std::vector<float>>>;
Hessians measure_hessians(Engine&, Ops& ops, const Dataset&, int64_t samples, const std::set<std::string>& weights);

}  // namespace athanor
