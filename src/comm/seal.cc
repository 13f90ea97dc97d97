#include "comm/seal.h"

#include "base/error.h"

namespace athanor {

void Seal::add(const void* data, size_t bytes) {
  if (!begun_) {
    std::string number;
    for (int shift = 0; shift < 64; shift += 8) number += char(count_ >> shift);
    message_.begin(derive(as_text(key_), "message", number));
    begun_ = true;
  }
  message_.add(data, bytes);
}

Tag Seal::end() {
  CHECK(begun_, "a message without bytes");
  begun_ = false;
  ++count_;
  return message_.tag();
}

Digest derive(std::string_view key, std::string_view purpose, std::string_view context) {
  return hmac_sha256(key, cat("athanor ", purpose, '\0', context));
}

std::string_view as_text(const Digest& d) { return {reinterpret_cast<const char*>(d.data()), d.size()}; }
std::string_view as_text(const Tag& t) { return {reinterpret_cast<const char*>(t.data()), t.size()}; }

}  // namespace athanor
