// HostRing: host memory in equal slots, for copies that do not block the host (pinned, unless host and device share
// memory). The caller must know that the copies from a slot have completed before it reuses the slot.
#pragma once
#include <vector>

#include "base/int.h"
#include "device/arena.h"
#include "device/device.h"

namespace athanor {

class HostRing {
 public:
  HostRing(Device& device, size_t slot_bytes, int64_t slots)
      : device_(device), slot_bytes_(round_up(slot_bytes, kArenaAlign)), bytes_(slot_bytes_ * size_t(slots)) {
    if (device_.unified())
      own_.resize(bytes_);
    else
      pinned_ = device_.allocate(bytes_, Mem::pinned);
  }
  ~HostRing() {
    if (pinned_) device_.release(pinned_, bytes_, Mem::pinned);
  }
  HostRing(const HostRing&) = delete;
  HostRing& operator=(const HostRing&) = delete;

  int64_t slots() const { return int64_t(bytes_ / slot_bytes_); }
  void* slot(int64_t i) { return (pinned_ ? static_cast<std::byte*>(pinned_) : own_.data()) + size_t(i) * slot_bytes_; }

 private:
  Device& device_;
  size_t slot_bytes_, bytes_;
  void* pinned_ = nullptr;
  std::vector<std::byte> own_;
};

}  // namespace athanor
