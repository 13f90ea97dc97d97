// Simulates, event by event, a run of some days on a cluster whose GPUs fail now and then, and computes the fraction of
// the time that is spent training. Independent of the model: the duration of saves and restarts is an input.
#pragma once
#include <cstdint>
#include <vector>

namespace athanor {

struct ClusterRun {
  int64_t gpus = 8, gpus_per_node = 8;
  double days = 7;
  double mtbf_hours = 50000;  // mean time between failures of one GPU and its share of all other hardware; failures
                              // are a Poisson process
  double save_every = 1800;   // seconds of training between two saves
  double save_stall = 30;     // seconds that a save stops training
  double save_write = 0;      // seconds from a save's start until it is durable; at least save_stall
  double detection = 60, restart = 300;  // seconds until a failure is noticed; and from then until training continues
  double repair_hours = 24;              // hours until a failed node can be used again
  double repair_share = 1;               // fraction of failures that take a node away; the others restart in place
  int64_t spares = -1;                   // spare nodes; negative: always enough
  double failures_per_second() const { return double(gpus) / (mtbf_hours * 3600); }
  int64_t nodes() const { return (gpus + gpus_per_node - 1) / gpus_per_node; }
};

// Seconds of a run by their use; they add up to the whole time.
struct ClusterTimes {
  double training = 0;    // training that is kept
  double saving = 0;      // stalls caused by saves
  double lost = 0;        // training since the last durable save before a failure
  double restarting = 0;  // including detection
  double waiting = 0;     // waiting for a node when no spare is left
  double failures = 0;
  double all() const { return training + saving + lost + restarting + waiting; }
  double effective() const { return training / all(); }
};

// Simulates one random course of events, selected by the seed. Failures do not depend on how often the run saves.
ClusterTimes simulate(const ClusterRun&, uint64_t seed);

// Mean over courses [0, count), and standard deviation of the effective fraction of a course.
struct ClusterMean {
  ClusterTimes times;
  double deviation = 0;
};
ClusterMean simulate_many(const ClusterRun&, int count);

// Returns the best seconds of training between saves: by first-order theory [Young 1974], by [Daly 2006, eq. 37], and
// by simulating candidates.
double young_interval(const ClusterRun&);
double daly_interval(const ClusterRun&);
double best_interval(const ClusterRun&, int count);

// Returns the min number of spare nodes with which the run loses at most `share` of the time, compared with unlimited
// spares.
int64_t spares_needed(const ClusterRun&, int count, double share);

}  // namespace athanor
