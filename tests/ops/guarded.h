// Guarded: one tensor in device memory, surrounded by canary bytes: at least a row before and after it, and the gaps
// between strided rows. Memory is accessed only through Device::copy.
#pragma once
#include <optional>
#include <vector>

#include "device/device.h"

namespace athanor {

class Guarded {
 public:
  Guarded(Device&, const Tensor& like, uint32_t salt);  // another salt gives other canaries
  ~Guarded();
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  const Tensor& tensor() const { return tensor_; }
  void write(const std::vector<std::byte>& elements);  // dense; the canaries are written too
  std::vector<std::byte> read();                       // dense; fetches the canaries for damage()
  // Byte offset from the tensor's data of the first canary that changed, as of the last read().
  std::optional<int64_t> damage() const;

 private:
  template <class Fn>
  void each_row(Fn&& fn) const;  // fn(offset of the row in the image, offset of the row in the dense elements)
  std::byte canary(size_t at) const { return std::byte(uint8_t((at * 37 + salt_ * 101) ^ 0x5a)); }

  Device& device_;
  Tensor tensor_;
  uint32_t salt_;
  size_t row_bytes_, rows_, pitch_, margin_;
  std::vector<std::byte> image_;
  void* memory_;
};

}  // namespace athanor
