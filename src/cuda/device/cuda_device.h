// One GPU: memory, a CUDA stream for each Stream, events and graphs. Use it only from the thread that created it; the
// constructor sets the runtime's current device once.
#pragma once
#include <cuda_runtime_api.h>

#include <array>
#include <functional>
#include <map>
#include <utility>

#include "device/device.h"
namespace athanor::cuda {

// Memory bandwidth of a GPU in bytes per second, from its data rate.
double memory_rate(int index);

// Lets this thread's kernels start before earlier kernels in the stream have ended, if the current GPU supports that.
void allow_programmatic_launches(bool allowed);

class CudaDevice final : public Device {
 public:
  // programmatic_launch: kernels may start before earlier ones have ended, if the GPU supports that. host_memory:
  // capacity(Mem::pinned) in bytes; 0: unknown, no limit.
  explicit CudaDevice(int index, bool programmatic_launch = true, size_t host_memory = 0);
  ~CudaDevice() override;
  cudaStream_t stream(Stream which) const { return streams_[static_cast<size_t>(which)]; }
  // Called after every wait of the host, before CUDA's status is checked: throws if the run was aborted. May be null.
  void set_wait_check(std::function<void()> check) { wait_check_ = std::move(check); }
  // Source of device memory to use instead of cudaMalloc(), which is the fallback if allocate() returns null.
  // released() is called with a block right before free(), which may be called after the source has been replaced.
  struct MemorySource {
    std::function<void*(size_t bytes)> allocate;
    std::function<void(void*)> released, free;
  };
  void set_memory_source(MemorySource source) { source_ = std::move(source); }

  std::string description() const override { return description_; }
  int64_t dimension_multiple() const override { return 64; }  // a tile row of 128 bytes in 16-bit types
  int64_t multiprocessors() const override { return properties_.multiProcessorCount; }
  void* allocate(size_t bytes, Mem) override;
  void release(void* memory, size_t bytes, Mem) override;
  void copy(void* to, const void* from, size_t bytes, Stream) override;
  std::unique_ptr<Event> record(Stream) override;
  void wait(Stream, const Event&) override;
  void wait(const Event&) override;
  double seconds(const Event& from, const Event& to) const override;
  int64_t host_waits() const override { return host_waits_; }
  void sync() override;
  size_t capacity(Mem) const override;
  size_t allocated() const override { return allocated_; }
  size_t in_use() const override;
  double peak_flops(DType) const override;
  double peak_plain_flops() const override;
  double peak_bytes() const override { return memory_rate(index_); }
  bool can_capture() const override { return true; }
  void begin_capture() override;
  std::unique_ptr<Graph> end_capture() override;
  void launch(const Graph&) override;

 private:
  int index_;
  cudaDeviceProp properties_{};
  std::string description_;
  std::array<cudaStream_t, kDeviceStreams> streams_{};
  size_t capacity_ = 0, host_capacity_, allocated_ = 0;
  int64_t host_waits_ = 0;
  void waited(cudaError_t);
  std::function<void()> wait_check_;
  MemorySource source_;
  std::map<void*, std::function<void(void*)>> from_source_;  // blocks from the source, and the function that frees each
};
}  // namespace athanor::cuda
