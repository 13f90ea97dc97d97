// Checksums of bytes on disk: XXH3-128 for checkpoints, CRC32C for TensorBoard records. They detect incomplete writes
// and flipped bits, not tampering.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace athanor {

// Streaming XXH3-128 (seed 0). hex() is the canonical form (32 lower-case digits, high half first), as printed by
// `xxhsum -H2`. A value type: a copy continues independently.
class Xxh3 {
 public:
  static constexpr size_t kHexDigits = 32;

  Xxh3();
  void update(std::span<const std::byte> bytes);
  void update(const void* data, size_t bytes) { update({static_cast<const std::byte*>(data), bytes}); }
  std::string hex() const;  // checksum of all bytes so far; more may be added

 private:
  alignas(64) std::byte state_[576];  // XXH3_state_t; checksum.cc asserts size and alignment
};

std::string xxh3_hex(std::span<const std::byte> bytes);
inline std::string xxh3_hex(std::string_view text) { return xxh3_hex(std::as_bytes(std::span(text))); }

// CRC-32C (Castagnoli, reflected 0x82F63B78), the checksum of iSCSI [RFC 3720, B.4] and TFRecord. To continue a stream
// pass the CRC of the previous bytes. Uses the SSE4.2 instruction if available.
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t previous = 0);
inline uint32_t crc32c(const void* data, size_t bytes, uint32_t previous = 0) {
  return crc32c({static_cast<const std::byte*>(data), bytes}, previous);
}

// Table-based version, for machines without the instruction and for comparison.
uint32_t crc32c_portable(std::span<const std::byte> bytes, uint32_t previous = 0);

}  // namespace athanor
