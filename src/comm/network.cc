#include "comm/network.h"

#include <cmath>
#include <cstdint>

namespace athanor {

double Network::seconds(double bytes, int ranks, int stride) const {
  if (ranks == 1) return 0;
  const double rate = int64_t{ranks} * stride <= per_machine ? link_bytes : network_bytes;
  return kStart + kHop * std::ceil(std::log2(ranks)) + bytes / (rate * kBandwidthShare);
}

double Network::seconds_to_all(double link, double network, int ranks) const {
  if (ranks == 1) return 0;
  return kStart + kHop * std::ceil(std::log2(ranks)) +
         ((link > 0 ? link / link_bytes : 0) + (network > 0 ? network / network_bytes : 0)) / kBandwidthShare;
}

}  // namespace athanor
