// The parts of `athanor plan` besides the memory of one rank: each prints its part.
#pragma once
#include <string>

#include "config/config.h"
#include "engine/engine.h"
#include "perf/cluster.h"
#include "plan/rank_plan.h"

namespace athanor {

// plan --pipeline: the blocks of each model chunk, the pipeline bubble, the bytes of each stage, and the schedule.
struct PipelineDrawing {
  bool text = false;
  std::string svg = {};  // output file; "": none
};
void print_pipeline(const Config&, const Backend&, const Engine& of_first_stage, const PipelineDrawing&);

// plan --simulate: the time efficiency of a run on a cluster with failures.
struct ClusterArgs {
  bool simulate = false;
  ClusterRun run;        // save_every 0: checkpoint.interval_minutes of the config, or the optimum
  int64_t courses = 64;  // number of simulated runs that results are averaged over
};
void print_cluster(const Config&, const ClusterArgs&);

// The cluster of the given ranks, or of one rank per node; prints its assumptions about the GPU and its links. `how`:
// text on how the ranks are divided, ending in a comma, or "".
Cluster print_cluster_of(const Config&, const std::string& gpu, const ManyRanks&, const std::string& how = "");
// plan --ranks N: the predicted step of many ranks, and a table of other numbers of ranks.
void print_many_ranks(const Config&, const std::string& gpu, const ManyRanks&);
// plan --ranks N without --gpu: ranks on this machine's CPU, each with the configured threads, at rates measured first.
// Throws Error(usage) unless the configuration's device is the CPU.
void print_ranks_here(const Config&, const ManyRanks&, bool json);
// plan --ranks N: compares the meshes of N ranks (replicas, shards, context and tensor parallelism, with and without
// sequence parallelism) by the model of docs/distributed.md: their costs, which meshes do not fit and why, and why the
// best one is the best.
void print_meshes(const Config&, const Cluster&);

// plan --search: the fastest ways to run a configuration on many described GPUs.
struct SearchArgs {
  bool search = false, json = false;
  double price = 0;   // price of a GPU hour; 0: unknown
  std::string write;  // file for the configuration of the best candidate
};
void print_search(const Config&, const Cluster&, const SearchArgs&);

}  // namespace athanor
