// Progress marks of cuda/nccl/collective_marks.cu: what the host reads of each stream before, within and after
// collectives.
#include "cuda/nccl/collective_marks.h"

#include "tests/cuda/kernel_test.h"

namespace athanor {
namespace {

class CollectiveMarksTest : public KernelTest {};

TEST_F(CollectiveMarksTest, ReportTheCollectiveOfEachStream) {
  cuda::CudaDevice device(0);
  cuda::CollectiveMarks marks(device);
  const auto read = [&](Stream stream) {
    device.sync();
    return marks.read(stream);
  };
  EXPECT_FALSE(read(Stream::comm).inside());
  EXPECT_EQ(read(Stream::comm).collectives(), 0u);
  constexpr uint32_t kWhat = 0x80000007u;  // tests that all 32 bits are transferred
  for (uint32_t collective = 1; collective <= 3; ++collective) {
    marks.begin(Stream::comm, kWhat);
    const auto within = read(Stream::comm);
    EXPECT_TRUE(within.inside());
    EXPECT_EQ(within.what, kWhat);
    EXPECT_EQ(within.collectives(), collective);
    marks.end(Stream::comm);
    const auto after = read(Stream::comm);
    EXPECT_FALSE(after.inside());
    EXPECT_EQ(after.what, 0u);
    EXPECT_EQ(after.passed, 2 * collective);
  }
  EXPECT_EQ(read(Stream::compute).passed, 0u) << "streams count for themselves";
}

}  // namespace
}  // namespace athanor
