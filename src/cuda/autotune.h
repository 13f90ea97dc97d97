// Timing of kernel candidates: device memory, a stopwatch for a stream, and the timing loop.
#pragma once
#include <cuda_runtime_api.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "cuda/check.h"
namespace athanor::cuda {

class DeviceMemory {
 public:
  explicit DeviceMemory(size_t bytes) { CUDA_CHECK(cudaMalloc(&data_, bytes > 0 ? bytes : 1)); }
  ~DeviceMemory() { (void)cudaFree(data_); }  // also during stack unwinding
  DeviceMemory(DeviceMemory&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  DeviceMemory& operator=(DeviceMemory&&) = delete;
  char* data() const { return static_cast<char*>(data_); }

 private:
  void* data_ = nullptr;
};

class Stopwatch {
 public:
  explicit Stopwatch(cudaStream_t stream) : stream_(stream) {
    for (cudaEvent_t& event : events_) CUDA_CHECK(cudaEventCreate(&event));
  }
  ~Stopwatch() {
    for (cudaEvent_t event : events_) (void)cudaEventDestroy(event);
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  // Time on the stream, in microseconds, of everything that work() launches.
  template <class Work>
  double microseconds(Work&& work) {
    CUDA_CHECK(cudaEventRecord(events_[0], stream_));
    work();
    CUDA_CHECK(cudaEventRecord(events_[1], stream_));
    CUDA_CHECK(cudaEventSynchronize(events_[1]));
    float milliseconds = 0;
    CUDA_CHECK(cudaEventElapsedTime(&milliseconds, events_[0], events_[1]));
    return 1e3 * double(milliseconds);
  }

 private:
  cudaStream_t stream_;
  cudaEvent_t events_[2] = {};
};

// Best time per launch of each candidate in three rounds, in microseconds; candidates alternate, since clocks drift.
// time(i, launches) runs candidate i and returns microseconds per launch, or infinity.
template <class Time>
std::vector<double> best_interleaved(size_t candidates, Time&& time) {
  constexpr int kRounds = 3;
  constexpr double kRoundMicroseconds = 300;  // minimum duration of a round
  constexpr int kMostLaunches = 30;           // maximum launches per round
  std::vector<double> best(candidates, std::numeric_limits<double>::infinity());
  std::vector<int> launches(candidates);
  for (size_t i = 0; i < candidates; ++i) {
    time(i, 1);  // loads the kernel
    launches[i] = static_cast<int>(std::clamp(kRoundMicroseconds / time(i, 1), 1.0, double{kMostLaunches}));
  }
  for (int round = 0; round < kRounds; ++round)
    for (size_t i = 0; i < candidates; ++i) best[i] = std::min(best[i], time(i, launches[i]));
  return best;
}

}  // namespace athanor::cuda
