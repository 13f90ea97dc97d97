// SHA-256 [FIPS 180-4] and HMAC [RFC 2104]: how ranks prove to each other that they know the secret of their job.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace athanor {

using Digest = std::array<uint8_t, 32>;

Digest sha256(std::string_view bytes);
Digest hmac_sha256(std::string_view key, std::string_view message);
// Takes the same time wherever they differ.
bool same_bytes(std::string_view a, std::string_view b);

// Bytes from the system that nobody can guess.
std::string random_bytes(size_t count);
std::string to_hex(std::string_view bytes);

}  // namespace athanor
