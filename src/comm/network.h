// Bandwidths between ranks, and the time of a collective estimated from data-sheet numbers.
#pragma once

namespace athanor {

// link_bytes, network_bytes: bytes per second in one direction, within a machine and between machines.
struct Network {
  double link_bytes = 0, network_bytes = 0;
  int per_machine = 1;           // ranks per machine
  double bandwidth_share = 0.8;  // fraction of the data sheet that large messages reach
  // Latency in seconds: `start` per collective, `hop` per doubling of its ranks.
  double start = 20e-6, hop = 5e-6;
  // True if no group of `ranks` ranks at distance `stride` spans several machines, provided that ranks are numbered
  // machine by machine.
  bool within_machines(int ranks, int stride) const;
  // Seconds of a collective over `ranks` ranks at distance `stride` in which each rank sends `bytes`.
  double seconds(double bytes, int ranks, int stride) const;
  // Seconds of a collective in which the busiest rank sends or receives `link` bytes within its machine and `network`
  // bytes between machines.
  double seconds_to_all(double link, double network, int ranks) const;
};

}  // namespace athanor
