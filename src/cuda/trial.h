// What trials of kernels need: memory of their own, and a stopwatch for a stream.
#pragma once
#include <cuda_runtime_api.h>

#include <utility>

#include "cuda/check.h"
namespace athanor::cuda {

class DeviceMemory {
 public:
  explicit DeviceMemory(size_t bytes) { CUDA_CHECK(cudaMalloc(&data_, bytes > 0 ? bytes : 1)); }
  ~DeviceMemory() { (void)cudaFree(data_); }  // also while an Error is on its way
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

  // Of all that work() launches.
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

}  // namespace athanor::cuda
