// Poly1305 [RFC 8439, sec. 2.5]: a tag of 16 bytes that nobody can make for another message without the key. A key is
// used for one message only.
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
  void add(const void* data, size_t bytes);  // the message, in parts of any size
  Tag tag();                                 // of all of it; the end

 private:
  void block(const uint8_t* bytes, uint64_t top);  // 16 of them, and the bit above
  uint64_t r0_, r1_, s0_, s1_;                     // the key: a point, and what is added at the end
  uint64_t h0_ = 0, h1_ = 0, h2_ = 0;              // the sum so far, little-endian, below 2^131
  std::array<uint8_t, 16> rest_;                   // of a block that is not full yet
  size_t rest_bytes_ = 0;
};

}  // namespace athanor
