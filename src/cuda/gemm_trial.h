// What products are tried on: operands of random numbers that are in no cache, and a stopwatch for a stream.
#pragma once
#include <cuda_runtime_api.h>

#include <utility>
#include <vector>

#include "cuda/check.h"
#include "ops/gemm.h"
namespace athanor::cuda {

class DeviceMemory {
 public:
  explicit DeviceMemory(size_t bytes);
  ~DeviceMemory() { (void)cudaFree(data_); }  // also while an Error is on its way
  DeviceMemory(DeviceMemory&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  DeviceMemory& operator=(DeviceMemory&&) = delete;
  char* data() const { return static_cast<char*>(data_); }

 private:
  void* data_ = nullptr;
};

class Stopwatch {
 public:
  explicit Stopwatch(cudaStream_t stream);
  ~Stopwatch();
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

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

// One matrix (or bias) of a problem, with the alignment that it has in the problem. Random numbers, since a GPU is
// faster on zeros than on what a model holds.
class TrialMatrix {
 public:
  TrialMatrix(DType dtype, int64_t elements, int align);
  char* data() const { return memory_.data() + offset_; }

 private:
  DeviceMemory memory_;
  int offset_;
};

// The operands of an op, so many times over that a launch finds little of its own in the L2 cache.
class GemmTrial {
 public:
  GemmTrial(const Gemm& op, size_t scratch_bytes);
  Gemm next();  // the op, on the next copy of its operands
  void* scratch() const { return scratch_.data(); }

 private:
  struct Copy {
    TrialMatrix a, b, d, bias, with;
  };
  Gemm op_;
  DeviceMemory scratch_;
  std::vector<Copy> copies_;
  size_t turn_ = 0;
};

}  // namespace athanor::cuda
