// Search for the fastest way to run a configuration on many described GPUs.
#pragma once
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

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

}  // namespace athanor
