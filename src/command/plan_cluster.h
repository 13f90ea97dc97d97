// What a run makes of its time on a cluster that fails: `plan --simulate`.
#pragma once
#include "config/config.h"
#include "perf/cluster.h"

namespace athanor {

struct ClusterArgs {
  bool simulate = false;
  ClusterRun run;        // save_every 0: the configuration's save_interval_minutes, or the best
  int64_t courses = 64;  // that the figures are means of
};

void print_cluster(const Config&, const ClusterArgs&);

}  // namespace athanor
