// A cluster on paper: a run of some days on GPUs that fail now and then, played event by event, and what of its time is
// training. Knows no model: how long a save stops training, and a restart, are given.
#pragma once
#include <cstdint>
#include <vector>

namespace athanor {

struct ClusterRun {
  int64_t gpus = 8, gpus_per_node = 8;
  double days = 7;
  double mtbf_hours = 50000;             // of one GPU with its share of everything else; failures are a Poisson process
  double save_every = 1800;              // seconds of training between two saves
  double save_stall = 30;                // seconds that a save stops training
  double save_write = 0;                 // seconds from a save's start until it is durable; at least the stall counts
  double detection = 60, restart = 300;  // seconds until a failure is noticed; and until training goes on after that
  double repair_hours = 24;              // until a node that failed can be used again
  double repair_share = 1;               // of the failures, those that take a node away; the others restart in place
  int64_t spares = -1;                   // nodes that wait; negative: always enough
  double failures_per_second() const { return double(gpus) / (mtbf_hours * 3600); }
  int64_t nodes() const { return (gpus + gpus_per_node - 1) / gpus_per_node; }
};

// Where the time of a run goes, in seconds; together all of it.
struct ClusterTimes {
  double training = 0;    // that is kept
  double saving = 0;      // stalls
  double lost = 0;        // training since the last durable save before a failure
  double restarting = 0;  // detection included
  double waiting = 0;     // for a node, where no spare is left
  double failures = 0;
  double all() const { return training + saving + lost + restarting + waiting; }
  double effective() const { return training / all(); }
};

// One possible course, by the seed. The failures are the same whatever is saved how often.
ClusterTimes simulate(const ClusterRun&, uint64_t seed);

// The mean of courses [0, count), and how far the effective share of one lies from it (standard deviation).
struct ClusterMean {
  ClusterTimes times;
  double deviation = 0;
};
ClusterMean simulate_many(const ClusterRun&, int count);

// Seconds of training between saves that keep most: by first-order theory [Young 1974], by [Daly 2006, eq. 37], and of
// those that the simulation tries.
double young_interval(const ClusterRun&);
double daly_interval(const ClusterRun&);
double best_interval(const ClusterRun&, int count);
// Daly's expectation of the effective share [2006, eq. 20], with enough spares and saves that are durable at once.
double daly_effective(const ClusterRun&);

// The fewest spare nodes with which no more than `share` of the time is lost against always enough.
int64_t spares_needed(const ClusterRun&, int count, double share);

}  // namespace athanor
