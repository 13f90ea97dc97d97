// What a stream capture refuses: the call fails with the real code, and the capture is broken where a real one is.
#include <thread>

#include "emulator/tests/runtime_support.h"

namespace emu::testing {
namespace {
class RuntimeCapture : public RuntimeTest {
 protected:
  void SetUp() override {
    RuntimeTest::SetUp();
    stream_ = new_stream();
    other_ = new_stream();
    event_ = new_event();
    memory_ = device_ints({0, 0});
    pinned_ = pinned_ints(1);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }
  void TearDown() override {
    (void)cudaFreeHost(pinned_);
    (void)cudaFree(memory_);
    (void)cudaEventDestroy(event_);
    (void)cudaStreamDestroy(stream_);
    (void)cudaStreamDestroy(other_);
    RuntimeTest::TearDown();
  }
  void begin(cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal) {
    ASSERT_EQ(cudaStreamBeginCapture(stream_, mode), cudaSuccess) << explanation();
    ASSERT_EQ(launch_store(stream_, memory_, 1), cudaSuccess);
  }
  cudaError_t end() {
    cudaGraph_t graph = nullptr;
    const cudaError_t error = cudaStreamEndCapture(stream_, &graph);
    EXPECT_EQ(graph == nullptr, error != cudaSuccess);
    if (graph != nullptr) {
      EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    }
    (void)cudaGetLastError();
    return error;
  }
  // The call is refused during a capture and breaks it.
  void expect_breaks(const char* what, const std::function<cudaError_t()>& call, cudaError_t code) {
    SCOPED_TRACE(what);
    begin();
    EXPECT_EQ(call(), code) << explanation();
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    (void)cudaStreamIsCapturing(stream_, &status);
    EXPECT_EQ(status, cudaStreamCaptureStatusInvalidated);
    EXPECT_EQ(launch_store(stream_, memory_, 1), cudaErrorStreamCaptureInvalidated);
    EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);  // an ordinary stream again
  }

  cudaStream_t stream_ = nullptr, other_ = nullptr;
  cudaEvent_t event_ = nullptr;
  int *memory_ = nullptr, *pinned_ = nullptr;
};

TEST_F(RuntimeCapture, SynchronisationBreaksIt) {
  constexpr cudaError_t kCode = cudaErrorStreamCaptureUnsupported;
  expect_breaks(
      "stream", [&] { return cudaStreamSynchronize(stream_); }, kCode);
  expect_breaks(
      "stream query", [&] { return cudaStreamQuery(stream_); }, kCode);
  expect_breaks(
      "device", [] { return cudaDeviceSynchronize(); }, kCode);
  expect_breaks(
      "another stream", [&] { return cudaStreamSynchronize(other_); }, kCode);
  expect_breaks(
      "destroy", [&] { return cudaStreamDestroy(stream_); }, kCode);
}

TEST_F(RuntimeCapture, AllocationsBreakIt) {
  constexpr cudaError_t kCode = cudaErrorStreamCaptureUnsupported;
  void* memory = nullptr;
  expect_breaks(
      "cudaMalloc", [&] { return cudaMalloc(&memory, 4); }, kCode);
  expect_breaks(
      "cudaFree", [&] { return cudaFree(memory_); }, kCode);
  expect_breaks(
      "cudaMallocHost", [&] { return cudaMallocHost(&memory, 4); }, kCode);
  EXPECT_EQ(memory, nullptr);
}

TEST_F(RuntimeCapture, CopiesThatWaitOrUsePageableMemoryBreakIt) {
  constexpr cudaError_t kCode = cudaErrorStreamCaptureUnsupported;
  int value = 0;
  expect_breaks(
      "cudaMemcpy", [&] { return cudaMemcpy(&value, memory_, 4, cudaMemcpyDeviceToHost); }, kCode);
  const auto copy = [&](cudaMemcpyKind kind) {
    return kind == cudaMemcpyHostToDevice ? cudaMemcpyAsync(memory_, &value, 4, kind, stream_)
                                          : cudaMemcpyAsync(&value, memory_, 4, kind, stream_);
  };
  expect_breaks(
      "pageable source", [&] { return copy(cudaMemcpyHostToDevice); }, kCode);
  expect_breaks(
      "pageable destination", [&] { return copy(cudaMemcpyDeviceToHost); }, kCode);
  begin();
  EXPECT_EQ(cudaMemcpyAsync(memory_, pinned_, 4, cudaMemcpyHostToDevice, stream_), cudaSuccess);  // pinned is right
  EXPECT_EQ(end(), cudaSuccess);
}

TEST_F(RuntimeCapture, LegacyStreamIsNeverCaptured) {
  begin();
  EXPECT_EQ(launch_store(nullptr, memory_ + 1, 1), cudaSuccess);
  EXPECT_EQ(end(), cudaSuccess);
  expect_refused(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeGlobal), cudaErrorStreamCaptureUnsupported,
                 "legacy stream cannot be captured");
}

TEST_F(RuntimeCapture, EventsStayWithinTheCapture) {
  EMU_OK(cudaEventRecord(event_, other_));
  expect_breaks(
      "outside event", [&] { return cudaStreamWaitEvent(stream_, event_, 0); }, cudaErrorStreamCaptureIsolation);
  begin(cudaStreamCaptureModeRelaxed);
  EMU_OK(cudaEventRecord(event_, stream_));
  EXPECT_EQ(cudaEventSynchronize(event_), cudaErrorCapturedEvent);
  EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);
  expect_refused(cudaEventSynchronize(event_), cudaErrorCapturedEvent, "last recorded");
  EMU_OK(cudaEventRecord(event_, other_));  // usable after it is recorded again
  EMU_OK(cudaEventSynchronize(event_));
}

TEST_F(RuntimeCapture, ForkedStreamsMustJoin) {
  begin();
  EMU_OK(cudaEventRecord(event_, stream_));
  EMU_OK(cudaStreamWaitEvent(other_, event_, 0));
  EMU_OK(launch_store(other_, memory_ + 1, 1));
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  EMU_OK(cudaStreamIsCapturing(other_, &status));
  EXPECT_EQ(status, cudaStreamCaptureStatusActive);
  EXPECT_EQ(end(), cudaErrorStreamCaptureUnjoined);
  EMU_OK(cudaStreamIsCapturing(other_, &status));
  EXPECT_EQ(status, cudaStreamCaptureStatusNone);
  EMU_OK(cudaStreamSynchronize(other_));
}

TEST_F(RuntimeCapture, EndsWhereItBegan) {
  cudaGraph_t graph = nullptr;
  expect_refused(cudaStreamEndCapture(stream_, &graph), cudaErrorIllegalState, "not being captured");
  begin();
  expect_refused(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal), cudaErrorIllegalState, "already");
  EMU_OK(cudaEventRecord(event_, stream_));
  EMU_OK(cudaStreamWaitEvent(other_, event_, 0));
  expect_refused(cudaStreamEndCapture(other_, &graph), cudaErrorStreamCaptureUnmatched, "another stream");
  EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);
  begin();
  std::thread([&] {
    cudaGraph_t unused = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(stream_, &unused), cudaErrorStreamCaptureWrongThread);
  }).join();
  EXPECT_EQ(end(), cudaSuccess);
}

TEST_F(RuntimeCapture, TwoCapturesDoNotMerge) {
  begin();
  EMU_OK(cudaStreamBeginCapture(other_, cudaStreamCaptureModeGlobal));
  EMU_OK(cudaEventRecord(event_, stream_));
  EXPECT_EQ(cudaStreamWaitEvent(other_, event_, 0), cudaErrorStreamCaptureMerge);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(other_, &graph), cudaErrorStreamCaptureInvalidated);
  EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);
}

// Allocates from another thread while this one captures.
cudaError_t allocate_elsewhere() {
  cudaError_t error = cudaSuccess;
  std::thread([&] {
    void* memory = nullptr;
    error = cudaMalloc(&memory, 4);
    if (error == cudaSuccess) error = cudaFree(memory);
  }).join();
  return error;
}

TEST_F(RuntimeCapture, ModesSayWhoIsForbiddenWhat) {
  begin(cudaStreamCaptureModeGlobal);
  EXPECT_EQ(allocate_elsewhere(), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);
  begin(cudaStreamCaptureModeThreadLocal);
  EXPECT_EQ(allocate_elsewhere(), cudaSuccess);
  EXPECT_EQ(end(), cudaSuccess);
  begin(cudaStreamCaptureModeRelaxed);
  void* memory = nullptr;
  EMU_OK(cudaMalloc(&memory, 4));
  EXPECT_EQ(end(), cudaSuccess);
  EMU_OK(cudaFree(memory));
}

TEST_F(RuntimeCapture, UnendedCapturesAreLeaks) {
  begin();
  const auto lines = leaks();
  ASSERT_FALSE(lines.empty());
  EXPECT_NE(lines.back().find("never ended"), std::string::npos) << lines.back();
  EXPECT_EQ(end(), cudaSuccess);
}
}  // namespace
}  // namespace emu::testing
