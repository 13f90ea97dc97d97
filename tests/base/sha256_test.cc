// SHA-256 and HMAC against the published vectors, at every length around a block.
#include "base/sha256.h"

#include <gtest/gtest.h>

#include <set>

namespace athanor {
namespace {

std::string hex(const Digest& d) { return to_hex({reinterpret_cast<const char*>(d.data()), d.size()}); }

TEST(Sha256, PublishedVectors) {  // [FIPS 180-4 examples; NIST CAVP]
  EXPECT_EQ(hex(sha256("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hex(sha256("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hex(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hex(sha256(std::string(1000000, 'a'))), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, EveryLengthAroundABlockIsDifferent) {
  std::set<std::string> seen;
  for (size_t n = 0; n < 200; ++n) EXPECT_TRUE(seen.insert(hex(sha256(std::string(n, 'x')))).second) << n;
}

TEST(Hmac, PublishedVectors) {  // [RFC 4231, cases 1, 2 and 6]
  EXPECT_EQ(hex(hmac_sha256(std::string(20, '\x0b'), "Hi There")),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(hex(hmac_sha256("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hex(hmac_sha256(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First")),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(Hmac, DigestsCompareByEveryByte) {
  const auto text = [](const Digest& d) { return std::string(d.begin(), d.end()); };
  const Digest a = sha256("a");
  EXPECT_TRUE(same_bytes(text(a), text(a)));
  for (size_t i = 0; i < a.size(); ++i) {
    Digest b = a;
    b[i] ^= 1;
    EXPECT_FALSE(same_bytes(text(a), text(b))) << i;
  }
}

TEST(RandomBytes, AreNotTheSameTwice) {
  EXPECT_EQ(random_bytes(0), "");
  EXPECT_EQ(random_bytes(33).size(), 33u);
  EXPECT_NE(random_bytes(32), random_bytes(32));
}

}  // namespace
}  // namespace athanor
