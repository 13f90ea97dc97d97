#include "comm/network.h"

#include <cmath>
#include <cstdint>

namespace athanor {

// Each group is within a block of ranks * stride consecutive ranks; machines must consist of whole blocks.
bool Network::within_machines(int ranks, int stride) const { return per_machine % (int64_t{ranks} * stride) == 0; }

double Network::seconds(double bytes, int ranks, int stride) const {
  if (ranks == 1) return 0;
  const double rate = within_machines(ranks, stride) ? link_bytes : network_bytes;
  return start + hop * std::ceil(std::log2(ranks)) + bytes / (rate * bandwidth_share);
}

double Network::seconds_to_all(double link, double network, int ranks) const {
  if (ranks == 1) return 0;
  return start + hop * std::ceil(std::log2(ranks)) +
         ((link > 0 ? link / link_bytes : 0) + (network > 0 ? network / network_bytes : 0)) / bandwidth_share;
}

}  // namespace athanor
