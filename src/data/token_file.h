// One read-only token shard: format found and validated at open, then any run of tokens as int32.
// Reads are pread(2), not a mapping: a file that shrinks under the run gives an Error here, where a mapping gives
// SIGBUS. Thread-safe once open. The byte layouts are described in data/README.md.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/file.h"

namespace athanor {

// Where the tokens lie in a file; all that reading needs to know about a format.
struct TokenLayout {
  std::string format;     // "llm.c-v1", "llm.c-v7", "raw-uint16", "raw-uint32"
  int64_t offset = 0;     // bytes before the first token
  int64_t item_size = 0;  // bytes per token: 2 or 4, unsigned little-endian
  int64_t count = 0;      // tokens
};

class TokenFile {
 public:
  // dtype: "auto" (the file's header says), "uint16" or "uint32" (needed for headerless files, otherwise must agree).
  // vocab_size: tokens at or above it are errors; 0 = unknown, then only tokens above 2^31-1 are.
  static TokenFile open(const std::string& path, std::string_view dtype = "auto", int64_t vocab_size = 0);

  const std::string& path() const { return path_; }
  const TokenLayout& layout() const { return layout_; }
  int64_t count() const { return layout_.count; }
  int64_t bytes() const { return bytes_; }  // file size at open

  // Tokens [at, at + out.size()). Throws when the range is outside the file, a token is outside the vocabulary (naming
  // file and token number), the file's size is no longer that of open, or the read fails.
  void read(int64_t at, std::span<int32_t> out) const;

  // The same without the vocabulary check: tokens above 2^31-1 come out negative. For reports on bad files.
  void read_unchecked(int64_t at, std::span<int32_t> out) const;

  // Raw bytes [offset, offset + size) of the file, header included. For fingerprints.
  void read_bytes(int64_t offset, std::span<std::byte> out) const;

 private:
  TokenFile() = default;
  void require_unchanged() const;
  void require_vocabulary(int64_t at, std::span<const int32_t> tokens) const;

  std::string path_;
  TokenLayout layout_;
  int64_t bytes_ = 0;
  int64_t vocab_size_ = 0;
  Fd file_;
};

// Throws Error(usage) unless dtype is "auto", "uint16" or "uint32".
void require_token_dtype(std::string_view dtype);

}  // namespace athanor
