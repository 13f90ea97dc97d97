#include "comm/network.h"

#include <cmath>
#include <cstdint>

namespace athanor {
namespace {

constexpr double kBandwidthShare = 0.8;        // fraction of the data sheet that large messages reach
constexpr double kStart = 20e-6, kHop = 5e-6;  // latency in seconds: per collective; per doubling of its ranks

}  // namespace

double Network::seconds(double bytes, int ranks, int stride) const {
  if (ranks == 1) return 0;
  const double rate = int64_t{ranks} * stride <= per_machine ? link_bytes : network_bytes;
  return kStart + kHop * std::ceil(std::log2(ranks)) + bytes / (rate * kBandwidthShare);
}

}  // namespace athanor
