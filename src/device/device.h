// Device: memory and time, nothing numeric. cpu/ implements it; a CUDA backend will too.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "tensor/tensor.h"

namespace athanor {

enum class Mem : uint8_t { device, pinned, host };
// A lane is an ordered queue of work (a CUDA stream). CPU lanes run at once.
enum class Lane : uint8_t { compute, comm, copy };

struct Event {
  virtual ~Event() = default;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string description() const = 0;
  // Elements that dimensions of products should be multiples of: a vector of 64 bytes here, tiles on other devices.
  virtual int64_t dimension_multiple() const { return 16; }
  virtual bool unified() const { return false; }  // the host may read and write device memory
  // 4096-byte aligned, zero-filled. Called O(1) times per run: everything else is carved out of the plan.
  virtual void* allocate(size_t bytes, Mem) = 0;
  virtual void release(void* memory, size_t bytes, Mem) = 0;
  virtual void copy(void* dst, const void* src, size_t bytes, Lane) = 0;
  virtual std::unique_ptr<Event> record(Lane) = 0;
  virtual void wait(Lane, const Event&) = 0;  // the lane waits; the host does not
  virtual void sync() = 0;                    // the host waits for all lanes
  virtual size_t capacity(Mem) const = 0;     // bytes this process may use
  virtual size_t allocated() const = 0;       // bytes handed out and not released
};

}  // namespace athanor
