// The marks of cuda/nccl/collective_marks.cu: what the host reads of each lane, before, within and after collectives.
#include "cuda/nccl/collective_marks.h"

#include "tests/cuda/kernel_test.h"

namespace athanor {
namespace {

class CollectiveMarksTest : public KernelTest {};

TEST_F(CollectiveMarksTest, TellWhereEachLaneIs) {
  cuda::CudaDevice device(0);
  cuda::CollectiveMarks marks(device);
  const auto read = [&](Lane lane) {
    device.sync();
    return marks.read(lane);
  };
  EXPECT_FALSE(read(Lane::comm).inside());
  EXPECT_EQ(read(Lane::comm).collectives(), 0u);
  constexpr uint32_t kWhat = 0x80000007u;  // all 32 bits arrive
  for (uint32_t collective = 1; collective <= 3; ++collective) {
    marks.begin(Lane::comm, kWhat);
    const auto within = read(Lane::comm);
    EXPECT_TRUE(within.inside());
    EXPECT_EQ(within.what, kWhat);
    EXPECT_EQ(within.collectives(), collective);
    marks.end(Lane::comm);
    const auto after = read(Lane::comm);
    EXPECT_FALSE(after.inside());
    EXPECT_EQ(after.what, 0u);
    EXPECT_EQ(after.passed, 2 * collective);
  }
  EXPECT_EQ(read(Lane::compute).passed, 0u) << "lanes count for themselves";
}

}  // namespace
}  // namespace athanor
