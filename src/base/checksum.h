// Checksums of bytes that reach disk: XXH3-128 names damage in checkpoints, CRC32C frames TensorBoard records.
// Neither protects against an attacker; both notice every torn write and flipped bit that matters in practice.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace athanor {

// Streaming XXH3-128 (seed 0). hex() is the canonical form (32 lower-case digits, high half first): what `xxhsum -H2`
// prints. A value type: copying it forks the stream.
class Xxh3 {
 public:
  static constexpr size_t kHexDigits = 32;

  Xxh3();
  void update(std::span<const std::byte> bytes);
  void update(const void* data, size_t bytes) { update({static_cast<const std::byte*>(data), bytes}); }
  std::string hex() const;  // of everything so far; more may follow

 private:
  alignas(64) std::byte state_[576];  // XXH3_state_t; checksum.cc asserts size and alignment
};

std::string xxh3_hex(std::span<const std::byte> bytes);
inline std::string xxh3_hex(std::string_view text) { return xxh3_hex(std::as_bytes(std::span(text))); }

// CRC-32C (Castagnoli, reflected 0x82F63B78), the checksum of iSCSI [RFC 3720, B.4] and TFRecord. To continue a stream
// pass the CRC of what came before. Uses the SSE4.2 instruction where the machine has it.
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t previous = 0);
inline uint32_t crc32c(const void* data, size_t bytes, uint32_t previous = 0) {
  return crc32c({static_cast<const std::byte*>(data), bytes}, previous);
}

// The same by tables, for machines without the instruction and for comparison.
uint32_t crc32c_portable(std::span<const std::byte> bytes, uint32_t previous = 0);

}  // namespace athanor
