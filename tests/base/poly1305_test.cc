// Poly1305 against the published vectors; a message in parts has the tag of the whole.
#include "base/poly1305.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace athanor {
namespace {

std::string tag_of(const Digest& key, const std::string& message, size_t part = 1 << 20) {
  Poly1305 p(key);
  for (size_t at = 0; at < message.size(); at += part) p.add(message.data() + at, std::min(part, message.size() - at));
  const Tag tag = p.tag();
  return to_hex({reinterpret_cast<const char*>(tag.data()), tag.size()});
}

Digest key_of(const std::string& hex) {
  Digest key{};
  for (size_t i = 0; i < hex.size() / 2; ++i) key[i] = uint8_t(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
  return key;
}

TEST(Poly1305, PublishedVector) {  // [RFC 8439, sec. 2.5.2]
  EXPECT_EQ(tag_of(key_of("85d6be7857556d337f4452fe42d506a80103808afb0db2fd4abff6af4149f51b"),
                   "Cryptographic Forum Research Group"),
            "a8061dc1305136c6c22b8baf0c0127a9");
}

TEST(Poly1305, SumsAroundThePrime) {  // [RFC 8439, sec. A.3, cases 7 to 9]
  const std::string two = "02000000000000000000000000000000", ones(16, '\xff');
  EXPECT_EQ(tag_of(key_of(two), ones), "03000000000000000000000000000000");
  EXPECT_EQ(tag_of(key_of(two + std::string(32, 'f')), std::string("\x02") + std::string(15, '\0')),
            "03000000000000000000000000000000");
  EXPECT_EQ(tag_of(key_of(two), std::string("\xfd") + std::string(15, '\xff')), "faffffffffffffffffffffffffffffff");
}

TEST(Poly1305, PartsAreTheWhole) {
  const Digest key = sha256("key");
  for (size_t n = 0; n < 100; ++n) {
    const std::string message = random_bytes(n);
    for (const size_t part : {1, 7, 15, 16, 17, 33}) EXPECT_EQ(tag_of(key, message, part), tag_of(key, message)) << n;
  }
}

TEST(Poly1305, EveryBitCounts) {
  const Digest key = sha256("key");
  const std::string message = random_bytes(40), tag = tag_of(key, message);
  for (size_t bit = 0; bit < 8 * message.size(); ++bit) {
    std::string other = message;
    other[bit / 8] = char(uint8_t(other[bit / 8]) ^ (1u << (bit % 8)));
    EXPECT_NE(tag_of(key, other), tag);
  }
  EXPECT_NE(tag_of(key, message + '\0'), tag);
}

}  // namespace
}  // namespace athanor
