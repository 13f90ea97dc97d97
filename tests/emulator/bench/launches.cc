// How many small operations per second the emulated GPU runs on one core: what whole programs on it cost. Built for
// both variants, as emulator_bench_fast and emulator_bench_check; prints processor time, and tests nothing.
#include <cstdio>
#include <ctime>
#include <functional>

#include "cuda/launch.h"
#include "emulator/emulator.h"

namespace {
using athanor::cuda::launch;

// About a hundred instructions, three of them accesses to memory.
__global__ void small(float* y, const float* x, int n, float scale) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n) return;
  float value = x[i];
  for (int k = 0; k < 24; ++k) value = value * scale + 1.f;
  y[i] += value;
}

void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  fprintf(stderr, "emulator_bench: %s\n", cudaGetErrorString(error));
  exit(1);
}

constexpr int kThreads = 128, kBatch = 100;
constexpr size_t kBytes = kThreads * sizeof(float), kLiveFloats = size_t{16} << 20;

float* floats(size_t count) {
  void* memory = nullptr;
  check(cudaMalloc(&memory, count * sizeof(float)));
  check(cudaMemset(memory, 0, count * sizeof(float)));
  return static_cast<float*>(memory);
}

double processor_seconds() { return double(clock()) / CLOCKS_PER_SEC; }

// `batch` does kBatch operations and waits for them.
void measure(const char* what, const std::function<void()>& batch) {
  batch();
  long operations = 0;
  const double start = processor_seconds();
  while (processor_seconds() - start < 1) {
    batch();
    operations += kBatch;
  }
  printf("%-44s %9.0f per second\n", what, double(operations) / (processor_seconds() - start));
}
}  // namespace

int main() {
  float* x = floats(kThreads);
  float* y = floats(kThreads);
  floats(kLiveFloats);  // memory that is in nobody's way
  cudaStream_t stream = nullptr, other = nullptr;
  cudaEvent_t event = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  check(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  const auto small_launch = [&] { check(launch(small, {dim3(1), dim3(kThreads), 0, stream}, y, x, kThreads, 0.5f)); };
  const auto wait = [&] { check(cudaStreamSynchronize(stream)); };

  measure("launches, 1 block of 128 threads", [&] {
    for (int i = 0; i < kBatch; ++i) small_launch();
    wait();
  });
  measure("the same, each waited for", [&] {
    for (int i = 0; i < kBatch; ++i) {
      small_launch();
      wait();
    }
  });
  measure("the same, by replaying a graph", [&, graph = cudaGraphExec_t{}]() mutable {
    if (!graph) {
      cudaGraph_t captured = nullptr;
      check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
      for (int i = 0; i < kBatch; ++i) small_launch();
      check(cudaStreamEndCapture(stream, &captured));
      check(cudaGraphInstantiate(&graph, captured, 0));
      check(cudaGraphDestroy(captured));
    }
    check(cudaGraphLaunch(graph, stream));
    wait();
  });
  measure("copies of 512 bytes between buffers", [&] {
    for (int i = 0; i < kBatch; ++i) check(cudaMemcpyAsync(y, x, kBytes, cudaMemcpyDeviceToDevice, stream));
    wait();
  });
  measure("fills of 512 bytes", [&] {
    for (int i = 0; i < kBatch; ++i) check(cudaMemsetAsync(y, 0, kBytes, stream));
    wait();
  });
  measure("pairs of event record and wait", [&] {
    for (int i = 0; i < kBatch; ++i) {
      check(cudaEventRecord(event, i % 2 ? stream : other));
      check(cudaStreamWaitEvent(i % 2 ? other : stream, event));
    }
    wait();
  });
  const emu::Report report = emu::take_report();
  if (report.fault != emu::Fault::kNone) fprintf(stderr, "emulator_bench: %s\n", report.text.c_str());
  return report.fault == emu::Fault::kNone ? 0 : 1;
}
