// Captured graphs: replay, and the order of launches.
#include "emulator/tests/runtime_support.h"

namespace emu::testing {
namespace {
class RuntimeGraph : public RuntimeTest {
 protected:
  void SetUp() override {
    RuntimeTest::SetUp();
    stream_ = new_stream();
    other_ = new_stream();
    memory_ = device_ints({0, 0, 0, 0});
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }
  void TearDown() override {
    (void)cudaFree(memory_);
    (void)cudaStreamDestroy(stream_);
    (void)cudaStreamDestroy(other_);
    RuntimeTest::TearDown();
  }
  cudaGraph_t capture(const std::function<void()>& work) {
    EXPECT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal), cudaSuccess);
    work();
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess) << explanation();
    return graph;
  }
  // memory[1] = memory[0] + value on the other stream, memory[2] likewise on the first, then the sum's half: a diamond.
  void diamond(int value) {
    cudaEvent_t forked = new_event(), joined = new_event();
    EXPECT_EQ(launch_add(stream_, memory_, memory_, 1, value), cudaSuccess);
    EXPECT_EQ(cudaEventRecord(forked, stream_), cudaSuccess);
    EXPECT_EQ(cudaStreamWaitEvent(other_, forked, 0), cudaSuccess);
    EXPECT_EQ(launch_add(other_, memory_ + 1, memory_, 1, 100), cudaSuccess);
    EXPECT_EQ(launch_add(stream_, memory_ + 2, memory_, 1, 200), cudaSuccess);
    EXPECT_EQ(cudaEventRecord(joined, other_), cudaSuccess);
    EXPECT_EQ(cudaStreamWaitEvent(stream_, joined, 0), cudaSuccess);
    EXPECT_EQ(launch_add(stream_, memory_ + 3, memory_ + 1, 1, 1000), cudaSuccess);
    (void)cudaEventDestroy(forked);
    (void)cudaEventDestroy(joined);
  }

  cudaStream_t stream_ = nullptr, other_ = nullptr;
  int* memory_ = nullptr;
};

TEST_F(RuntimeGraph, ReplaysInTheOrderOfItsEdges) {
  for (int s = 1; s <= kSeeds; ++s) {
    seed(uint64_t(s));
    ASSERT_EQ(cudaMemset(memory_, 0, 16), cudaSuccess);
    EMU_OK(cudaDeviceSynchronize());
    cudaGraph_t graph = capture([&] { diamond(1); });
    EXPECT_EQ(read_ints(memory_, 1)[0], 0);  // captured, not run
    cudaGraphExec_t executable = nullptr;
    EMU_OK(cudaGraphInstantiate(&executable, graph, 0));
    EMU_OK(cudaGraphDestroy(graph));  // the executable graph lives on
    expect_refused(cudaGraphDestroy(graph), cudaErrorInvalidValue, "destroyed");
    for (int i = 0; i < 3; ++i) EMU_OK(cudaGraphLaunch(executable, stream_));
    EMU_OK(cudaGraphLaunch(executable, other_));  // behind the launches on the other stream
    EMU_OK(cudaStreamSynchronize(other_));
    EXPECT_EQ(read_ints(memory_, 4), (std::vector<int>{4, 104, 204, 1104}));
    EMU_OK(cudaGraphExecDestroy(executable));
  }
}

TEST_F(RuntimeGraph, WorkBesideAGraphNeedsOrder) {
  for (int s = 1; s <= kSeeds && kChecking; ++s) {
    seed(uint64_t(s));
    cudaGraph_t graph = capture([&] { diamond(1); });
    cudaGraphExec_t executable = nullptr;
    EMU_OK(cudaGraphInstantiate(&executable, graph, 0));
    EMU_OK(cudaGraphLaunch(executable, stream_));
    (void)launch_add(other_, memory_, memory_ + 3, 1, 1);  // not ordered after the graph
    EXPECT_EQ(take_report().fault, Fault::kRace) << "seed " << s;
    EMU_OK(cudaGraphExecDestroy(executable));
    EMU_OK(cudaGraphDestroy(graph));
  }
}

// A step as programs capture it: a fill and a copy beside a kernel, forked and joined by events.
TEST_F(RuntimeGraph, FillsAndCopiesAreReplayed) {
  int* pinned = pinned_ints(1);
  cudaGraph_t graph = capture([&] {
    cudaEvent_t forked = new_event(), joined = new_event();
    EXPECT_EQ(cudaMemsetAsync(memory_, 1, 4, stream_), cudaSuccess);
    EXPECT_EQ(cudaEventRecord(forked, stream_), cudaSuccess);
    EXPECT_EQ(cudaStreamWaitEvent(other_, forked, 0), cudaSuccess);
    EXPECT_EQ(cudaMemcpyAsync(memory_ + 1, pinned, 4, cudaMemcpyHostToDevice, other_), cudaSuccess);
    EXPECT_EQ(cudaEventRecord(joined, other_), cudaSuccess);
    EXPECT_EQ(launch_add(stream_, memory_ + 2, memory_, 1, 1), cudaSuccess);
    EXPECT_EQ(cudaStreamWaitEvent(stream_, joined, 0), cudaSuccess);
    EXPECT_EQ(cudaMemcpyAsync(memory_ + 3, memory_ + 1, 4, cudaMemcpyDeviceToDevice, stream_), cudaSuccess);
    (void)cudaEventDestroy(forked);
    (void)cudaEventDestroy(joined);
  });
  cudaGraphExec_t executable = nullptr;
  EMU_OK(cudaGraphInstantiate(&executable, graph, 0));
  for (int s = 1; s <= kSeeds; ++s) {
    seed(uint64_t(s));
    pinned[0] = s;  // read at each replay
    EMU_OK(cudaGraphLaunch(executable, stream_));
    EMU_OK(cudaStreamSynchronize(stream_));
    EXPECT_EQ(read_ints(memory_, 4), (std::vector<int>{0x01010101, s, 0x01010102, s}));
  }
  EMU_OK(cudaGraphExecDestroy(executable));
  EMU_OK(cudaGraphDestroy(graph));
  EMU_OK(cudaFreeHost(pinned));
}
}  // namespace
}  // namespace emu::testing
