// Laws of the checksums: published check values, streaming equals one shot, fast equals portable, every flip is seen.
#include "base/checksum.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string_view>
#include <vector>

#include "base/rng.h"

namespace athanor {
namespace {

std::span<const std::byte> bytes_of(std::string_view s) {
  return {reinterpret_cast<const std::byte*>(s.data()), s.size()};
}

std::vector<std::byte> random_bytes(size_t n, uint64_t seed) {
  std::vector<std::byte> v(n);
  for (size_t i = 0; i < n; ++i) v[i] = std::byte(random_bits(seed, stream_of("checksum"), i));
  return v;
}

TEST(Crc32c, MatchesPublishedCheckValues) {
  EXPECT_EQ(crc32c(bytes_of("123456789")), 0xE3069283u);
  EXPECT_EQ(crc32c(bytes_of("")), 0u);
  // RFC 3720, B.4: 32 bytes of zeros, of ones, ascending.
  std::vector<std::byte> v(32, std::byte{0});
  EXPECT_EQ(crc32c(v), 0x8A9136AAu);
  std::fill(v.begin(), v.end(), std::byte{0xff});
  EXPECT_EQ(crc32c(v), 0x62A8AB43u);
  for (size_t i = 0; i < 32; ++i) v[i] = std::byte(i);
  EXPECT_EQ(crc32c(v), 0x46DD794Eu);
}

TEST(Crc32c, PortableEqualsFastForEveryLengthAndAlignment) {
  const auto v = random_bytes(200, 1);
  for (size_t lo = 0; lo < 9; ++lo)
    for (size_t n = 0; n + lo <= v.size(); ++n) {
      const std::span<const std::byte> s(v.data() + lo, n);
      ASSERT_EQ(crc32c(s), crc32c_portable(s)) << lo << " " << n;
    }
}

TEST(Crc32c, StreamingEqualsOneShot) {
  const auto v = random_bytes(97, 2);
  const uint32_t whole = crc32c(v);
  for (size_t cut = 0; cut <= v.size(); ++cut) {
    const std::span<const std::byte> s(v);
    ASSERT_EQ(crc32c(s.subspan(cut), crc32c(s.first(cut))), whole) << cut;
    ASSERT_EQ(crc32c_portable(s.subspan(cut), crc32c_portable(s.first(cut))), whole) << cut;
  }
}

TEST(Xxh3, MatchesPublishedValues) {
  EXPECT_EQ(Xxh3().hex(),
            "99aa06d3014798d86001c324468d497f");  // digest of the empty input [xxHash specification, test suite]
  EXPECT_EQ(xxh3_hex(bytes_of("")), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(xxh3_hex(bytes_of("a")), "a96faf705af16834e6c632b61e964e1f");
}

TEST(Xxh3, StreamingEqualsOneShotForAnyCut) {
  // 1024 and 240 are the library's internal block and short-input limits: cross both.
  const auto v = random_bytes(3000, 3);
  const std::string whole = xxh3_hex(v);
  EXPECT_EQ(whole.size(), Xxh3::kHexDigits);
  for (size_t cut : {0u, 1u, 16u, 17u, 128u, 240u, 241u, 1023u, 1024u, 1025u, 2048u, 2999u, 3000u}) {
    Xxh3 h;
    h.update(std::span(v).first(cut));
    const Xxh3 fork = h;  // a copy continues independently
    h.update(std::span(v).subspan(cut));
    ASSERT_EQ(h.hex(), whole) << cut;
    ASSERT_EQ(fork.hex(), xxh3_hex(std::span(v).first(cut))) << cut;
  }
  Xxh3 h;
  for (std::byte b : v) h.update(&b, 1);
  EXPECT_EQ(h.hex(), whole);
}

TEST(Checksums, DetectEverySingleBitFlip) {
  auto v = random_bytes(65, 4);
  const std::string xxh = xxh3_hex(v);
  const uint32_t crc = crc32c(v);
  for (size_t bit = 0; bit < v.size() * 8; ++bit) {
    v[bit / 8] ^= std::byte(1u << (bit % 8));
    EXPECT_NE(xxh3_hex(v), xxh) << bit;
    EXPECT_NE(crc32c(v), crc) << bit;
    v[bit / 8] ^= std::byte(1u << (bit % 8));
  }
}

}  // namespace
}  // namespace athanor
