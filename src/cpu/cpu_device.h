// Host memory and cores as a Device; every stream executes synchronously.
#pragma once
#include <atomic>

#include "cpu/thread_pool.h"
#include "device/device.h"

namespace athanor {

class CpuDevice final : public Device {
 public:
  // threads: 0 = all usable cores. limit: bytes that the device may allocate; 0 = what machine and cgroup allow.
  explicit CpuDevice(int threads = 0, size_t limit = 0);
  ThreadPool& pool() { return pool_; }
  bool unified() const override { return true; }
  std::string description() const override;
  void* allocate(size_t bytes, Mem) override;
  void release(void* memory, size_t bytes, Mem) override;
  void copy(void* dst, const void* src, size_t bytes, Stream) override;
  size_t capacity(Mem) const override { return capacity_; }
  size_t allocated() const override { return allocated_.load(); }

 private:
  ThreadPool pool_;
  size_t capacity_;
  std::atomic<size_t> allocated_{0};
};

}  // namespace athanor
