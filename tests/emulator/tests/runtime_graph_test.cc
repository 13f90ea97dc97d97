// Captured graphs: replay, updates, kernel nodes.
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

TEST_F(RuntimeGraph, NodesAndEdgesAreAsCaptured) {
  cudaGraph_t graph = capture([&] { diamond(1); });
  size_t count = 0;
  EMU_OK(cudaGraphGetNodes(graph, nullptr, &count));
  ASSERT_EQ(count, 4u);
  cudaGraphNode_t nodes[4], roots[4];
  EMU_OK(cudaGraphGetNodes(graph, nodes, &count));
  cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
  EMU_OK(cudaGraphNodeGetType(nodes[3], &type));
  EXPECT_EQ(type, cudaGraphNodeTypeKernel);
  size_t root_count = 4;
  EMU_OK(cudaGraphGetRootNodes(graph, roots, &root_count));
  EXPECT_EQ(root_count, 1u);
  EXPECT_EQ(roots[0], nodes[0]);
  size_t edges = 0;
  EMU_OK(cudaGraphNodeGetDependencies(nodes[3], nullptr, nullptr, &edges));
  EXPECT_EQ(edges, 2u);
  EMU_OK(cudaGraphDestroy(graph));
  expect_refused(cudaGraphDestroy(graph), cudaErrorInvalidValue, "destroyed");
  expect_refused(cudaGraphNodeGetType(nodes[0], &type), cudaErrorInvalidValue, "not a node");
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

TEST_F(RuntimeGraph, EventsRecordedInsideTimeEachLaunch) {
  cudaEvent_t start = new_event(0), end = new_event(0);
  expect_refused(cudaEventRecordWithFlags(start, stream_, cudaEventRecordExternal), cudaErrorInvalidValue, "captured");
  cudaGraph_t graph = capture([&] {
    EXPECT_EQ(cudaEventRecordWithFlags(start, stream_, cudaEventRecordExternal), cudaSuccess);
    EXPECT_EQ(launch_add(stream_, memory_, memory_, 1, 1), cudaSuccess);
    EXPECT_EQ(cudaEventRecordWithFlags(end, stream_, cudaEventRecordExternal), cudaSuccess);
  });
  cudaGraphNode_t nodes[3], added = nullptr;
  size_t count = 3;
  EMU_OK(cudaGraphGetNodes(graph, nodes, &count));
  cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
  EMU_OK(cudaGraphNodeGetType(nodes[0], &type));
  EXPECT_EQ(type, cudaGraphNodeTypeEventRecord);
  float milliseconds = -1;
  expect_refused(cudaEventElapsedTime(&milliseconds, start, end), cudaErrorInvalidResourceHandle, "never recorded");
  cudaGraphExec_t executable = nullptr;
  EMU_OK(cudaGraphInstantiate(&executable, graph, 0));
  for (int i = 0; i < 3; ++i) {
    EMU_OK(cudaGraphLaunch(executable, stream_));
    EMU_OK(cudaEventSynchronize(end));
    EMU_OK(cudaEventElapsedTime(&milliseconds, start, end));
    EXPECT_GT(milliseconds, 0);
    EXPECT_LT(milliseconds, 1);
    EXPECT_EQ(read_ints(memory_, 1)[0], i + 1);  // the event is after the kernel
  }
  cudaEvent_t gone = new_event();
  EMU_OK(cudaGraphAddEventRecordNode(&added, graph, &nodes[2], 1, gone));
  EMU_OK(cudaGraphExecDestroy(executable));
  EMU_OK(cudaGraphInstantiate(&executable, graph, 0));
  EMU_OK(cudaEventDestroy(gone));
  expect_refused(cudaGraphLaunch(executable, stream_), cudaErrorInvalidValue, "destroyed");
  EMU_OK(cudaGraphExecDestroy(executable));
  EMU_OK(cudaGraphDestroy(graph));
  EMU_OK(cudaEventDestroy(start));
  EMU_OK(cudaEventDestroy(end));
}

TEST_F(RuntimeGraph, KernelNodesTakeNewArguments) {
  cudaGraph_t graph = capture([&] { EXPECT_EQ(launch_store(stream_, memory_, 1), cudaSuccess); });
  cudaGraphExec_t executable = nullptr;
  EMU_OK(cudaGraphInstantiate(&executable, graph, 0));
  cudaGraphNode_t node = nullptr;
  size_t count = 1;
  EMU_OK(cudaGraphGetNodes(graph, &node, &count));
  cudaKernelNodeParams params{};
  EMU_OK(cudaGraphKernelNodeGetParams(node, &params));
  EXPECT_EQ(params.func, store_kernel());
  EXPECT_EQ(*static_cast<int*>(params.kernelParams[1]), 1);
  int* to = memory_ + 3;
  int value = 42;
  void* arguments[] = {&to, &value};
  params.kernelParams = arguments;
  EMU_OK(cudaGraphExecKernelNodeSetParams(executable, node, &params));
  EMU_OK(cudaGraphLaunch(executable, stream_));
  EMU_OK(cudaStreamSynchronize(stream_));
  EXPECT_EQ(read_ints(memory_, 4), (std::vector<int>{0, 0, 0, 42}));
  EMU_OK(cudaGraphNodeSetEnabled(executable, node, 0));
  EMU_OK(cudaMemset(memory_, 0, 16));
  EMU_OK(cudaDeviceSynchronize());
  EMU_OK(cudaGraphLaunch(executable, stream_));
  EMU_OK(cudaStreamSynchronize(stream_));
  EXPECT_EQ(read_ints(memory_, 4)[3], 0);
  params.blockDim = dim3(2048);
  expect_refused(cudaGraphExecKernelNodeSetParams(executable, node, &params), cudaErrorInvalidConfiguration, "1024");
  EMU_OK(cudaGraphExecDestroy(executable));
  EMU_OK(cudaGraphDestroy(graph));
}

TEST_F(RuntimeGraph, BuiltByHand) {
  EMU_OK(launch_store(stream_, memory_, 0));  // makes the kernel known
  EMU_OK(cudaStreamSynchronize(stream_));
  cudaGraph_t graph = nullptr;
  EMU_OK(cudaGraphCreate(&graph, 0));
  cudaGraphNode_t first = nullptr, last = nullptr, host = nullptr;
  int one = 1, two = 2;
  void* arguments[] = {&memory_, &one};
  cudaKernelNodeParams params{};
  params.func = const_cast<void*>(store_kernel());
  params.gridDim = dim3(1);
  params.blockDim = dim3(32);
  params.kernelParams = arguments;
  EMU_OK(cudaGraphAddKernelNode(&first, graph, nullptr, 0, &params));
  arguments[1] = &two;
  EMU_OK(cudaGraphAddKernelNode(&last, graph, &first, 1, &params));
  int calls = 0;
  cudaHostNodeParams host_params{[](void* p) { ++*static_cast<int*>(p); }, &calls};
  EMU_OK(cudaGraphAddHostNode(&host, graph, &last, 1, &host_params));
  cudaGraphExec_t executable = nullptr;
  EMU_OK(cudaGraphInstantiate(&executable, graph, 0));
  EMU_OK(cudaGraphLaunch(executable, stream_));
  EMU_OK(cudaGraphLaunch(executable, stream_));
  EMU_OK(cudaStreamSynchronize(stream_));
  EXPECT_EQ(read_ints(memory_, 1)[0], 2);
  EXPECT_EQ(calls, 2);
  EMU_OK(cudaGraphExecDestroy(executable));
  EMU_OK(cudaGraphDestroy(graph));
}

TEST_F(RuntimeGraph, GraphsLaunchedInACaptureBecomePartOfIt) {
  cudaGraph_t inner = capture([&] { EXPECT_EQ(launch_add(stream_, memory_, memory_, 1, 1), cudaSuccess); });
  cudaGraphExec_t inner_executable = nullptr, executable = nullptr;
  EMU_OK(cudaGraphInstantiate(&inner_executable, inner, 0));
  cudaGraph_t outer = capture([&] {
    for (int i = 0; i < 3; ++i) EXPECT_EQ(cudaGraphLaunch(inner_executable, stream_), cudaSuccess);
  });
  EMU_OK(cudaGraphInstantiate(&executable, outer, 0));
  EMU_OK(cudaGraphLaunch(executable, stream_));
  EMU_OK(cudaStreamSynchronize(stream_));
  EXPECT_EQ(read_ints(memory_, 1)[0], 3);
  for (cudaGraphExec_t e : {inner_executable, executable}) EMU_OK(cudaGraphExecDestroy(e));
  for (cudaGraph_t g : {inner, outer}) EMU_OK(cudaGraphDestroy(g));
}
}  // namespace
}  // namespace emu::testing
