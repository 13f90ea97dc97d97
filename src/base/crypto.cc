#include "base/crypto.h"

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <openssl/sha.h>

#include "base/error.h"
#include "base/int.h"

namespace athanor {
namespace {

const uint8_t* bytes_of(std::string_view text) { return reinterpret_cast<const uint8_t*>(text.data()); }

// Throws with OpenSSL's reason unless `ok`.
void require(bool ok, const char* call) {
  if (ok) return;
  char reason[256];
  ERR_error_string_n(ERR_get_error(), reason, sizeof reason);
  throw Error(cat("OpenSSL: ", call, " failed: ", reason));
}

// The library's configuration file could replace algorithms; it is not read.
void initialize() { require(OPENSSL_init_crypto(OPENSSL_INIT_NO_LOAD_CONFIG, nullptr) == 1, "OPENSSL_init_crypto"); }

}  // namespace

Digest sha256(std::string_view bytes) {
  initialize();
  Digest digest;
  require(SHA256(bytes_of(bytes), bytes.size(), digest.data()) != nullptr, "SHA256");
  return digest;
}

Digest hmac_sha256(std::string_view key, std::string_view message) {
  initialize();
  Digest digest;
  unsigned size = 0;
  const uint8_t* made = HMAC(EVP_sha256(), key.data(), narrow<int>(int64_t(key.size())), bytes_of(message),
                             message.size(), digest.data(), &size);
  require(made && size == digest.size(), "HMAC");
  return digest;
}

Poly1305::Poly1305() {
  initialize();
  EVP_MAC* const algorithm = EVP_MAC_fetch(nullptr, "POLY1305", nullptr);
  require(algorithm, "EVP_MAC_fetch");
  context_.reset(EVP_MAC_CTX_new(algorithm));
  EVP_MAC_free(algorithm);  // the context has a reference of its own
  require(context_ != nullptr, "EVP_MAC_CTX_new");
}

void Poly1305::Free::operator()(evp_mac_ctx_st* context) const { EVP_MAC_CTX_free(context); }

void Poly1305::begin(const Digest& key) {
  require(EVP_MAC_init(context_.get(), key.data(), key.size(), nullptr) == 1, "EVP_MAC_init");
}

void Poly1305::add(const void* data, size_t bytes) {
  require(EVP_MAC_update(context_.get(), static_cast<const uint8_t*>(data), bytes) == 1, "EVP_MAC_update");
}

Tag Poly1305::tag() {
  Tag tag;
  size_t size = 0;
  require(EVP_MAC_final(context_.get(), tag.data(), &size, tag.size()) == 1 && size == tag.size(), "EVP_MAC_final");
  return tag;
}

bool same_bytes(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string random_bytes(size_t count) {
  initialize();
  std::string bytes(count, '\0');
  require(RAND_bytes(reinterpret_cast<uint8_t*>(bytes.data()), narrow<int>(int64_t(count))) == 1, "RAND_bytes");
  return bytes;
}

std::string to_hex(std::string_view bytes) {
  std::string hex;
  for (const char c : bytes) {
    hex += "0123456789abcdef"[uint8_t(c) >> 4];
    hex += "0123456789abcdef"[uint8_t(c) & 15];
  }
  return hex;
}

}  // namespace athanor
