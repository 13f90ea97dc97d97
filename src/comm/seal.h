// Message authentication: a tag over a key per connection and direction, the message number and its bytes proves
// origin, integrity and order. Does not encrypt.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/crypto.h"

namespace athanor {

// One direction of a connection. Messages are numbered, so a dropped, repeated or reordered one has a wrong tag.
class Seal {
 public:
  Seal() = default;
  explicit Seal(const Digest& key) : key_(key) {}
  void add(const void* data, size_t bytes);  // adds bytes to the message, in any number of calls
  Tag end();                                 // returns its tag and starts the next message

 private:
  Digest key_ = {};
  uint64_t count_ = 0;
  Poly1305 message_;
  bool begun_ = false;
};

// Both directions, from one end's point of view. Keys are derived in the handshake.
struct Session {
  Seal out, in;
};

// Derives a key for one purpose; it does not reveal the original key [HMAC as in RFC 5869, sec. 2.3].
Digest derive(std::string_view key, std::string_view purpose, std::string_view context);
std::string_view as_text(const Digest&);
std::string_view as_text(const Tag&);

}  // namespace athanor
