// Collectives in the background give the results of direct calls while another communicator is in use; a failure is
// thrown to the caller that waits.
#include "comm/background.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "comm/threads.h"
#include "tests/comm/collective_laws.h"

namespace athanor {
namespace {

TEST(Background, CallsMatchDirectOnesAndOverlapOthers) {
  run_ranks(3, [](std::unique_ptr<Communicator> world) {
    constexpr int64_t kElements = 1000;
    const auto own = [&](float by) { return std::vector<float>(size_t(kElements), by * float(world->rank() + 1)); };
    const auto background = make_background(world->split(0, world->rank()));
    std::vector<float> sum = own(1), shard = own(2), all(size_t(3 * kElements)), other = own(4);
    background->all_reduce(testing::tensor_of(sum), Reduce::sum, Stream::workers);
    background->all_gather(testing::tensor_of(all), testing::tensor_of(shard), Stream::workers);
    EXPECT_EQ(background->calls(), 2);
    world->all_reduce(testing::tensor_of(other), Reduce::max, Stream::compute);
    EXPECT_EQ(other, std::vector<float>(size_t(kElements), 12.0f));
    background->finish_calls(2);
    EXPECT_EQ(sum, std::vector<float>(size_t(kElements), 6.0f));
    for (const int r : {0, 1, 2}) EXPECT_EQ(all[size_t((r + 1) * kElements - 1)], 2.0f * float(r + 1));
  });
}

TEST(Background, FailuresReachTheWaitingThread) {
  std::atomic<int> failed = 0;
  EXPECT_THROW(run_ranks(2,
                         [&](std::unique_ptr<Communicator> world) {
                           const auto background = make_background(world->split(0, world->rank()));
                           if (world->rank() == 1) throw Error("rank 1 fails");
                           std::vector<float> x(10);
                           background->all_reduce(testing::tensor_of(x), Reduce::sum, Stream::workers);
                           try {
                             background->finish_calls(1);
                           } catch (const Error& e) {
                             failed += std::string(e.what()).find("rank 1") != std::string::npos ? 1 : 0;
                           }
                         }),
               Error);
  EXPECT_EQ(failed, 1);
}

}  // namespace
}  // namespace athanor
