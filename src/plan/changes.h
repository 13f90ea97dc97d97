// The effect of a single change to a configuration on many GPUs: next ZeRO stage, another micro-batch, recomputation,
// precision, or the memory that stores optimizer states.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "plan/rank_plan.h"

namespace athanor {

struct Change {
  std::string keys;                // the changed keys: "zero_stage 2"
  std::optional<Prediction> then;  // expected prediction; absent: the change is not possible because of `why`
  std::string why;
};

// All changes that the configuration does not have yet; `before`: its expected prediction.
std::vector<Change> changes_of(const Config&, const Cluster&, const Prediction& before);

// One line per change: step time and memory compared with `before`, or why it is not possible.
std::string to_text(const std::vector<Change>&, const Prediction& before);
// The change that shortens the step most, "precision fp8_tensorwise: -30.3 % step time"; or a text that no change does.
std::string best_of(const std::vector<Change>&, const Prediction& before);
std::string to_json(const std::vector<Change>&, const Prediction& before);  // a JSON array

}  // namespace athanor
