// Hashes, message authentication and random bytes, computed by OpenSSL's libcrypto. Ranks prove with them that they
// know the job's secret, and authenticate what they send. Nothing here encrypts.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

struct evp_mac_ctx_st;  // OpenSSL's EVP_MAC_CTX

namespace athanor {

using Digest = std::array<uint8_t, 32>;
using Tag = std::array<uint8_t, 16>;

Digest sha256(std::string_view bytes);                               // [FIPS 180-4]
Digest hmac_sha256(std::string_view key, std::string_view message);  // [RFC 2104]

// Poly1305 [RFC 8439, sec. 2.5]: a 16-byte message authentication code. A key must be used for a single message.
class Poly1305 {
 public:
  Poly1305();
  void begin(const Digest& key);             // starts a message
  void add(const void* data, size_t bytes);  // appends to the message, in any number of calls
  Tag tag();                                 // returns the tag and ends the message

 private:
  struct Free {
    void operator()(evp_mac_ctx_st*) const;
  };
  std::unique_ptr<evp_mac_ctx_st, Free> context_;
};

// Constant-time comparison.
bool same_bytes(std::string_view a, std::string_view b);

// Cryptographically secure random bytes.
std::string random_bytes(size_t count);
std::string to_hex(std::string_view bytes);

}  // namespace athanor
