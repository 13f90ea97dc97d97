// One read-only token shard: format found and validated at open, then any run of tokens as int32, what is known of its
// documents, and which predictions count. Thread-safe once open. The formats are described in data/README.md.
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
  // dtype: "auto" (the file's header says) or the type of a token, which headerless files need and others must agree
  // with. vocab_size: tokens at or above it are errors; 0 = unknown, then only tokens above 2^31-1 are.
  static TokenFile open(const std::string& path, std::string_view dtype = "auto", int64_t vocab_size = 0);

  const std::string& path() const { return file_.path(); }
  const StableFile& file() const { return file_; }
  const TokenLayout& layout() const { return layout_; }
  int64_t count() const { return layout_.count; }
  int64_t bytes() const { return file_.bytes(); }  // file size at open

  // Tokens [at, at + out.size()). Throws when the range is outside the file, a token is outside the vocabulary (naming
  // file and token number), the file's size is no longer that of open, or the read fails.
  void read(int64_t at, std::span<int32_t> out) const;

  // The same without the vocabulary check: what is no int32 of at least 0 comes out negative. For reports on bad files.
  void read_unchecked(int64_t at, std::span<int32_t> out) const;
  std::string item_text(int64_t at) const;  // token number `at` as the file has it, for such reports

  // 1 where the token is to be predicted, 0 where the file's loss mask says that it is not.
  void read_mask(int64_t at, std::span<uint8_t> out) const;

 private:
  TokenFile(StableFile file, TokenLayout layout, int64_t vocab_size)
      : file_(std::move(file)), layout_(std::move(layout)), vocab_size_(vocab_size) {}
  void require_range(int64_t at, int64_t size) const;
  void require_vocabulary(int64_t at, std::span<const int32_t> tokens) const;

  StableFile file_;
  TokenLayout layout_;
  int64_t vocab_size_ = 0;
};

}  // namespace athanor
