// Bandwidths between ranks, and the time of a collective estimated from data-sheet numbers.
#pragma once

namespace athanor {

// Bytes per second in one direction, within a machine and between machines.
struct Network {
  static constexpr double kBandwidthShare = 0.8;        // fraction of the data sheet that large messages reach
  static constexpr double kStart = 20e-6, kHop = 5e-6;  // latency in seconds: per collective; per doubling of its ranks
  double link_bytes = 0, network_bytes = 0;
  int per_machine = 1;  // ranks
  // Seconds of a collective over `ranks` ranks at distance `stride` in which each rank sends `bytes`.
  double seconds(double bytes, int ranks, int stride) const;
  // Of one in which the busiest rank sends or receives `link` bytes within its machine and `network` bytes beyond.
  double seconds_to_all(double link, double network, int ranks) const;
};

}  // namespace athanor
