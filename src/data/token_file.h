// A read-only token shard: its format is detected and validated at open; reads ranges of tokens as int32, document ends
// and the loss mask. Thread-safe once open. Formats are described in data/README.md.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/token_format.h"

namespace athanor {

class TokenFile {
 public:
  // dtype: "auto" (from the header) or a token type. Headerless files need a token type; other files must have the
  // given one.
  // vocab_size: larger tokens are errors; with 0 = unknown, only tokens above 2^31-1 are.
  static TokenFile open(const std::string& path, std::string_view dtype = "auto", int64_t vocab_size = 0);

  // Opens a shard of images: layout().images is set, and tokens are bytes.
  static TokenFile open_images(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const StableFile& file() const { return file_; }
  const TokenLayout& layout() const { return layout_; }
  int64_t count() const { return layout_.count; }
  int64_t bytes() const { return file_.bytes(); }  // file size when it was opened

  // Reads tokens [at, at + out.size()). Throws if the range is outside the file, a token is outside the vocabulary
  // (naming file and token number), the file's size has changed since open, or the read fails.
  void read(int64_t at, std::span<int32_t> out) const;

  // Reads without the vocabulary check; invalid values become negative. For reports on bad files.
  void read_unchecked(int64_t at, std::span<int32_t> out) const;
  std::string item_text(int64_t at) const;  // token number `at` as stored in the file, for such reports

  // Reads the loss mask: 1 = token is predicted, 0 = excluded by the file's loss mask.
  void read_mask(int64_t at, std::span<uint8_t> out) const;

 private:
  TokenFile(StableFile file, TokenLayout layout, int64_t vocab_size)
      : file_(std::move(file)), layout_(std::move(layout)), vocab_size_(vocab_size) {}
  static TokenFile open_any(const std::string& path, std::optional<TokenType> type, int64_t vocab_size);
  void require_range(int64_t at, int64_t size) const;
  void require_vocabulary(int64_t at, std::span<const int32_t> tokens) const;

  StableFile file_;
  TokenLayout layout_;
  int64_t vocab_size_ = 0;
};

}  // namespace athanor
