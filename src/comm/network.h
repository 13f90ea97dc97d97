// Bandwidths between ranks, and the time of a collective estimated from data-sheet numbers.
#pragma once

namespace athanor {

// Bytes per second in one direction, within a machine and between machines.
struct Network {
  double link_bytes = 0, network_bytes = 0;
  int per_machine = 1;  // ranks
  // Seconds of a collective over `ranks` ranks at distance `stride` in which each rank sends `bytes`.
  double seconds(double bytes, int ranks, int stride) const;
};

}  // namespace athanor
