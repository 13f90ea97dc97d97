// XXH3 from the header-only library; CRC32C by slicing-by-8 tables or the SSE4.2 instruction, chosen at run time.
#include "base/checksum.h"

#include <array>
#include <bit>
#include <cstring>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace athanor {
namespace {

static_assert(sizeof(XXH3_state_t) == 576 && alignof(XXH3_state_t) == 64, "Xxh3::state_ must hold an XXH3_state_t");
static_assert(std::endian::native == std::endian::little, "the byte order of every file this program writes");

XXH3_state_t* as_state(std::byte* p) { return reinterpret_cast<XXH3_state_t*>(p); }
const XXH3_state_t* as_state(const std::byte* p) { return reinterpret_cast<const XXH3_state_t*>(p); }

std::string to_hex(XXH128_hash_t hash) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (uint64_t half : {hash.high64, hash.low64})
    for (int shift = 60; shift >= 0; shift -= 4) text += kDigits[(half >> shift) & 15];
  return text;
}

// Table k advances the CRC of a byte past k further zero bytes, so that eight bytes take eight independent look-ups
// [Kounavis & Berry 2005, "A systematic approach to building high performance software-based CRC generators"].
using CrcTables = std::array<std::array<uint32_t, 256>, 8>;

constexpr CrcTables make_crc_tables() {
  CrcTables t{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? 0x82F63B78u : 0u);
    t[0][i] = crc;
  }
  for (size_t k = 1; k < 8; ++k)
    for (size_t i = 0; i < 256; ++i) t[k][i] = (t[k - 1][i] >> 8) ^ t[0][t[k - 1][i] & 255];
  return t;
}
constexpr CrcTables kCrc = make_crc_tables();

uint64_t load8(const std::byte* p) {
  uint64_t v;
  std::memcpy(&v, p, 8);
  return v;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t crc32c_sse42(std::span<const std::byte> bytes, uint32_t previous) {
  const std::byte* p = bytes.data();
  size_t n = bytes.size();
  uint64_t crc = ~previous;
  for (; n >= 8; n -= 8, p += 8) crc = __builtin_ia32_crc32di(crc, load8(p));
  uint32_t tail = uint32_t(crc);
  for (; n > 0; --n, ++p) tail = __builtin_ia32_crc32qi(tail, uint8_t(*p));
  return ~tail;
}
bool has_crc_instruction() { return __builtin_cpu_supports("sse4.2"); }
#else
uint32_t crc32c_sse42(std::span<const std::byte> bytes, uint32_t previous) { return crc32c_portable(bytes, previous); }
bool has_crc_instruction() { return false; }
#endif

}  // namespace

Xxh3::Xxh3() {
  std::memset(state_, 0, sizeof(state_));
  XXH3_128bits_reset(as_state(state_));
}

void Xxh3::update(std::span<const std::byte> bytes) {
  if (!bytes.empty()) XXH3_128bits_update(as_state(state_), bytes.data(), bytes.size());
}

std::string Xxh3::hex() const { return to_hex(XXH3_128bits_digest(as_state(state_))); }

std::string xxh3_hex(std::span<const std::byte> bytes) { return to_hex(XXH3_128bits(bytes.data(), bytes.size())); }

uint32_t crc32c_portable(std::span<const std::byte> bytes, uint32_t previous) {
  const std::byte* p = bytes.data();
  size_t n = bytes.size();
  uint32_t crc = ~previous;
  for (; n >= 8; n -= 8, p += 8) {
    const uint64_t v = load8(p) ^ crc;
    crc = 0;
    for (int k = 0; k < 8; ++k) crc ^= kCrc[7 - k][(v >> (8 * k)) & 255];
  }
  for (; n > 0; --n, ++p) crc = (crc >> 8) ^ kCrc[0][(crc ^ uint8_t(*p)) & 255];
  return ~crc;
}

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t previous) {
  return has_crc_instruction() ? crc32c_sse42(bytes, previous) : crc32c_portable(bytes, previous);
}

}  // namespace athanor
