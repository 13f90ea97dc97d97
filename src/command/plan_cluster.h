// Simulates the time efficiency of a run on a cluster with failures: `plan --simulate`.
#pragma once
#include "config/config.h"
#include "perf/cluster.h"

namespace athanor {

struct ClusterArgs {
  bool simulate = false;
  ClusterRun run;        // save_every 0: checkpoint.interval_minutes of the config, or the optimum
  int64_t courses = 64;  // number of simulated runs that results are averaged over
};

void print_cluster(const Config&, const ClusterArgs&);

}  // namespace athanor
