// The model of a collective's time: which groups of ranks are within machines, and what bandwidth and latency add.
#include "comm/network.h"

#include <gtest/gtest.h>

namespace athanor {
namespace {

TEST(Network, GroupIsWithinMachinesIfNoGroupOfItsSizeSpansTwo) {
  for (const int per_machine : {1, 2, 6, 8})
    for (const int ranks : {2, 3, 4, 6, 8, 12, 16})
      for (const int stride : {1, 2, 3, 4, 8}) {
        bool crosses = false;
        for (int first = 0; first < 48 * ranks * stride; ++first) {
          if (first / stride % ranks != 0) continue;  // not the first of a group
          crosses |= first / per_machine != (first + (ranks - 1) * stride) / per_machine;
        }
        const Network net{.per_machine = per_machine};
        EXPECT_EQ(net.within_machines(ranks, stride), !crosses) << ranks << " at " << stride << " of " << per_machine;
      }
}

TEST(Network, CollectiveTimeIsLatencyPlusBytesOverBandwidth) {
  const Network net{
      .link_bytes = 1e9, .network_bytes = 1e8, .per_machine = 8, .bandwidth_share = 0.5, .start = 3e-6, .hop = 2e-6};
  EXPECT_DOUBLE_EQ(net.seconds(1e6, 4, 2), 3e-6 + 2 * 2e-6 + 1e6 / 5e8);
  EXPECT_DOUBLE_EQ(net.seconds(1e6, 3, 1), 3e-6 + 2 * 2e-6 + 1e6 / 5e7);  // ranks 6 to 8 are on two machines
  EXPECT_DOUBLE_EQ(net.seconds(1e6, 16, 1), 3e-6 + 4 * 2e-6 + 1e6 / 5e7);
  EXPECT_EQ(net.seconds(1e6, 1, 1), 0);
  EXPECT_DOUBLE_EQ(net.seconds_to_all(1e6, 2e6, 2), 3e-6 + 2e-6 + 1e6 / 5e8 + 2e6 / 5e7);
}

}  // namespace
}  // namespace athanor
