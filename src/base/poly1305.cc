#include "base/poly1305.h"

#include <algorithm>
#include <cstring>

namespace athanor {
namespace {

__extension__ using u128 = unsigned __int128;

uint64_t little_endian(const uint8_t* bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < 8; ++i) value |= uint64_t(bytes[i]) << (8 * i);
  return value;
}

void put_little_endian(uint8_t* to, uint64_t value) {
  for (size_t i = 0; i < 8; ++i) to[i] = uint8_t(value >> (8 * i));
}

// a += b; the result is the carry.
uint64_t add_to(uint64_t& a, uint64_t b) {
  a += b;
  return a < b;
}

}  // namespace

Poly1305::Poly1305(const Digest& key)
    : r0_(little_endian(key.data()) & 0x0ffffffc0fffffff),  // [RFC 8439, sec. 2.5]: some bits of r are zero
      r1_(little_endian(key.data() + 8) & 0x0ffffffc0ffffffc),
      s0_(little_endian(key.data() + 16)),
      s1_(little_endian(key.data() + 24)) {}

// h = (h + block) r mod 2^130 - 5. r1 is a multiple of 4, so that r1 2^128 is 5/4 r1.
void Poly1305::block(const uint8_t* bytes, uint64_t top) {
  const uint64_t folded = r1_ + (r1_ >> 2);
  const u128 low = u128(h0_) + little_endian(bytes);
  const u128 high = u128(h1_) + little_endian(bytes + 8) + uint64_t(low >> 64);
  const auto h0 = uint64_t(low), h1 = uint64_t(high);
  const uint64_t h2 = h2_ + top + uint64_t(high >> 64);
  const u128 d0 = u128(h0) * r0_ + u128(h1) * folded;
  const u128 d1 = u128(h0) * r1_ + u128(h1) * r0_ + h2 * folded + uint64_t(d0 >> 64);
  h2_ = h2 * r0_ + uint64_t(d1 >> 64);
  h0_ = uint64_t(d0), h1_ = uint64_t(d1);
  const uint64_t above = (h2_ >> 2) + (h2_ & ~uint64_t{3});  // 5 times what is above 2^130
  h2_ &= 3;
  h2_ += add_to(h1_, add_to(h0_, above));
}

void Poly1305::add(const void* data, size_t bytes) {
  const auto* from = static_cast<const uint8_t*>(data);
  if (rest_bytes_ > 0) {
    const size_t n = std::min(bytes, rest_.size() - rest_bytes_);
    std::memcpy(rest_.data() + rest_bytes_, from, n);
    rest_bytes_ += n, from += n, bytes -= n;
    if (rest_bytes_ < rest_.size()) return;
    block(rest_.data(), 1);
    rest_bytes_ = 0;
  }
  for (; bytes >= rest_.size(); from += rest_.size(), bytes -= rest_.size()) block(from, 1);
  if (bytes > 0) std::memcpy(rest_.data(), from, bytes);
  rest_bytes_ = bytes;
}

Tag Poly1305::tag() {
  if (rest_bytes_ > 0) {
    rest_[rest_bytes_] = 1;
    std::fill(rest_.begin() + std::ptrdiff_t(rest_bytes_) + 1, rest_.end(), uint8_t{0});
    block(rest_.data(), 0);
  }
  // h mod p: h + 5 - 2^130 unless that is negative; then + s mod 2^128.
  uint64_t g0 = h0_, g1 = h1_;
  const uint64_t g2 = h2_ + add_to(g1, add_to(g0, 5));
  const uint64_t reduced = 0 - uint64_t{g2 >= 4};  // all bits, or none
  h0_ ^= (h0_ ^ g0) & reduced, h1_ ^= (h1_ ^ g1) & reduced;
  h1_ += s1_ + add_to(h0_, s0_);
  Tag tag;
  put_little_endian(tag.data(), h0_), put_little_endian(tag.data() + 8, h1_);
  return tag;
}

}  // namespace athanor
