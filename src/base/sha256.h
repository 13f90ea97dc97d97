// SHA-256 [FIPS 180-4] and HMAC [RFC 2104], with which ranks prove that they know the job's secret.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace athanor {

using Digest = std::array<uint8_t, 32>;

Digest sha256(std::string_view bytes);
Digest hmac_sha256(std::string_view key, std::string_view message);
// Constant-time comparison.
bool same_bytes(std::string_view a, std::string_view b);

// Cryptographically secure random bytes from the system.
std::string random_bytes(size_t count);
std::string to_hex(std::string_view bytes);

}  // namespace athanor
