// What one change of a configuration would bring on many GPUs: the next ZeRO stage, another micro-batch, recomputation,
// precision, or where states are kept.
#pragma once
#include <string>

#include "command/plan_ranks.h"
#include "config/config.h"

namespace athanor {

// A line for each change that the configuration has not yet: step time and memory against `before`, the prediction
// expected of it, or why it is not possible. JSON: an array.
std::string changes_text(const Config&, const Cluster&, const Prediction& before);
std::string changes_json(const Config&, const Cluster&, const Prediction& before);

}  // namespace athanor
