// Poly1305 [RFC 8439, sec. 2.5]: a 16-byte message authentication code. A key must be used for a single message.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

#include "base/sha256.h"

namespace athanor {

using Tag = std::array<uint8_t, 16>;

class Poly1305 {
 public:
  explicit Poly1305(const Digest& key);
  void add(const void* data, size_t bytes);  // to the message, in any number of calls
  Tag tag();                                 // of the whole message; call once, at the end

 private:
  void block(const uint8_t* bytes, uint64_t top);  // 16 bytes, and the bit above them
  uint64_t r0_, r1_, s0_, s1_;                     // the key: r, and s, which is added at the end
  uint64_t h0_ = 0, h1_ = 0, h2_ = 0;              // the sum so far, little-endian, below 2^131
  std::array<uint8_t, 16> rest_;                   // an incomplete block
  size_t rest_bytes_ = 0;
};

}  // namespace athanor
