// What proves that a message comes from the other end of a connection, unchanged and in its place: a tag over a key of
// this connection and direction, the number of the message, and its bytes. Hides nothing of them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/poly1305.h"

namespace athanor {

// One direction of a connection. Messages are counted: one that is left out, repeated or moved has the tag of another.
class Seal {
 public:
  Seal() = default;
  explicit Seal(const Digest& key) : key_(key) {}
  void add(const void* data, size_t bytes);  // to the message, in parts of any size
  Tag end();                                 // of it; the next one begins

 private:
  Digest key_ = {};
  uint64_t count_ = 0;
  std::optional<Poly1305> message_;
};

// Both directions, as one end sees them. Keys come from what both ends have proved in the handshake.
struct Session {
  Seal out, in;
};

// A key for one purpose from another: whoever has the one cannot tell the other [HMAC as in RFC 5869, sec. 2.3].
Digest derive(std::string_view key, std::string_view purpose, std::string_view context);
std::string_view as_text(const Digest&);
std::string_view as_text(const Tag&);

}  // namespace athanor
