// What one change of a configuration would bring on many GPUs: the next ZeRO stage, another micro-batch, recomputation,
// precision, or where states are kept.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "command/plan_ranks.h"
#include "config/config.h"

namespace athanor {

struct Change {
  std::string keys;                // "zero_stage 2"
  std::optional<Prediction> then;  // expected; none: `why` it is not possible
  std::string why;
};

// The changes that the configuration has not yet; `before`: the prediction expected of it.
std::vector<Change> changes_of(const Config&, const Cluster&, const Prediction& before);

// A line each: step time and memory against `before`, or why it is not possible.
std::string to_text(const std::vector<Change>&, const Prediction& before);
// "precision fp8_tensorwise: -30.3 % step time": the one that shortens the step most, if any does.
std::string best_of(const std::vector<Change>&, const Prediction& before);
std::string to_json(const std::vector<Change>&, const Prediction& before);  // an array

}  // namespace athanor
