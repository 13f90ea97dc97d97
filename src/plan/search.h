// Search for the fastest way to run a configuration on many described GPUs.
#pragma once
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "config/config.h"
#include "plan/rank_plan.h"

namespace athanor {

constexpr int kMostSearchedStages = 16;  // largest pipeline_parallel_size that is tried

// A candidate: zero_stage, replicas, and tensor-, context- and pipeline-parallel sizes; micro-batch and recomputation
// are chosen as in a run. Pipelines use the schedule 1f1b; search() tries the other schedules on the best of
// them.
struct Candidate {
  int stage = 1, copies = 1, context = 1, tensor = 1;
  int pipeline = 1;
  PipelineSchedule schedule = PipelineSchedule::one_f_one_b;
  bool operator==(const Candidate&) const = default;
};
std::vector<Candidate> search_candidates(const Config&, const Cluster&);
// The configuration of a candidate, not yet validated.
Config configured_as(const Config&, const Candidate&);
// The keys of a candidate: "zero_stage 2, tensor_parallel_size 4 with sequence_parallel".
std::string keys_of(const Candidate&);

struct PlannedCandidate {
  Candidate way;
  Prediction p;      // expected step
  double bound = 0;  // seconds of the step at ideal rates
};
// The configuration of a possible candidate, with its micro-batch size; validated.
Config configured_exactly_as(const Config&, const PlannedCandidate&);

struct SearchResult {
  std::vector<PlannedCandidate> possible;                 // shortest expected step first, then lowest memory
  std::map<std::string, std::vector<Candidate>> refused;  // keyed by the reason
  size_t tried = 0;
};
// Plans all candidates, and the other schedules of the best pipeline.
SearchResult search(const Config&, const Cluster&);

// For each choice, its key and the best candidate that differs from the best of all in this choice.
std::vector<std::pair<std::string, PlannedCandidate>> other_choices(std::span<const PlannedCandidate>);

// The effect of a single change to a configuration on many GPUs: next ZeRO stage, another micro-batch, recomputation,
// precision, or the memory that stores optimizer states.

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
