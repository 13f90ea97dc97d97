// Finds the fastest ways to run a configuration on many described GPUs: `plan --search`.
#pragma once
#include <string>
#include <vector>

#include "command/plan_ranks.h"
#include "config/config.h"

namespace athanor {

struct SearchArgs {
  bool search = false, json = false;
  double price = 0;   // price of a GPU hour; 0: unknown
  std::string write;  // file for the configuration of the best candidate
};

// A candidate: zero_stage, replicas, and tensor-, context- and pipeline-parallel sizes; micro-batch and recomputation
// are chosen as in a run. Pipelines use the schedule 1f1b; print_search() tries the other schedules on the best of
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

void print_search(const Config&, const Cluster&, const SearchArgs&);

}  // namespace athanor
