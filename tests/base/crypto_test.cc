// SHA-256, HMAC and Poly1305 against published vectors; a message added in parts gives the tag of the full message.
#include "base/crypto.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

namespace athanor {
namespace {

std::string hex(const Digest& d) { return to_hex({reinterpret_cast<const char*>(d.data()), d.size()}); }

TEST(Sha256, MatchesPublishedVectors) {  // [FIPS 180-4 examples; NIST CAVP]
  EXPECT_EQ(hex(sha256("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hex(sha256("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hex(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hex(sha256(std::string(1000000, 'a'))), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Hmac, MatchesPublishedVectors) {  // [RFC 4231, cases 1, 2 and 6]
  EXPECT_EQ(hex(hmac_sha256(std::string(20, '\x0b'), "Hi There")),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(hex(hmac_sha256("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hex(hmac_sha256(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First")),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(Hmac, DigestComparisonUsesEveryByte) {
  const auto text = [](const Digest& d) { return std::string(d.begin(), d.end()); };
  const Digest a = sha256("a");
  EXPECT_TRUE(same_bytes(text(a), text(a)));
  for (size_t i = 0; i < a.size(); ++i) {
    Digest b = a;
    b[i] ^= 1;
    EXPECT_FALSE(same_bytes(text(a), text(b))) << i;
  }
}

std::string tag_of(const Digest& key, const std::string& message, size_t part = 1 << 20) {
  Poly1305 p;
  p.begin(key);
  for (size_t at = 0; at < message.size(); at += part) p.add(message.data() + at, std::min(part, message.size() - at));
  const Tag tag = p.tag();
  return to_hex({reinterpret_cast<const char*>(tag.data()), tag.size()});
}

TEST(Poly1305, MatchesPublishedVector) {  // [RFC 8439, sec. 2.5.2]
  const Digest key = {0x85, 0xd6, 0xbe, 0x78, 0x57, 0x55, 0x6d, 0x33, 0x7f, 0x44, 0x52, 0xfe, 0x42, 0xd5, 0x06, 0xa8,
                      0x01, 0x03, 0x80, 0x8a, 0xfb, 0x0d, 0xb2, 0xfd, 0x4a, 0xbf, 0xf6, 0xaf, 0x41, 0x49, 0xf5, 0x1b};
  for (const size_t part : {1, 15, 16, 17, 100})
    EXPECT_EQ(tag_of(key, "Cryptographic Forum Research Group", part), "a8061dc1305136c6c22b8baf0c0127a9") << part;
}

TEST(Poly1305, ContextCanBeReusedWithAnotherKey) {
  Poly1305 p;
  const auto tag = [&](const Digest& key) {
    p.begin(key);
    p.add("message", 7);
    return p.tag();
  };
  const Tag first = tag(sha256("a"));
  EXPECT_NE(tag(sha256("b")), first);
  EXPECT_EQ(tag(sha256("a")), first);
}

TEST(RandomBytes, DifferPerCall) {
  EXPECT_EQ(random_bytes(0), "");
  EXPECT_EQ(random_bytes(33).size(), 33u);
  EXPECT_NE(random_bytes(32), random_bytes(32));
}

}  // namespace
}  // namespace athanor
