// HostDevice: plain host memory as a Device, for the reference ops.
#pragma once
#include <cstdlib>
#include <cstring>

#include "device/device.h"

namespace athanor {

class HostDevice final : public Device {
 public:
  std::string description() const override { return "host memory"; }
  void* allocate(size_t bytes, Mem) override {
    allocated_ += bytes;
    void* memory = std::aligned_alloc(4096, round_up<size_t>(bytes, 4096));
    std::memset(memory, 0, bytes);
    return memory;
  }
  void release(void* memory, size_t bytes, Mem) override {
    allocated_ -= bytes;
    std::free(memory);
  }
  void copy(void* dst, const void* src, size_t bytes, Stream) override { std::memcpy(dst, src, bytes); }
  size_t capacity(Mem) const override { return size_t{1} << 30; }
  size_t allocated() const override { return allocated_; }

 private:
  size_t allocated_ = 0;
};

}  // namespace athanor
