#include "data/text_input.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <tuple>
#include <utility>

#include "base/error.h"

namespace athanor {

TextInput::TextInput(const std::string& path) : path_(path == "-" ? "standard input" : path) {
  if (path == "-") {
    fd_ = STDIN_FILENO;
  } else {
    file_ = open_regular(path);
    fd_ = file_.get();
  }
  start_.resize(4);
  size_t got = 0;
  for (size_t more = 1; got < start_.size() && more > 0; got += more) {
    more = read_raw({start_.data() + got, start_.size() - got});
  }
  start_.resize(got);
  start_used_ = 0;
  const auto raw = [this](std::span<char> out) {
    if (start_used_ == start_.size()) return read_raw(out);
    const size_t count = std::min(out.size(), start_.size() - start_used_);
    std::copy_n(start_.data() + start_used_, count, out.data());
    start_used_ += count;
    return count;
  };
  if (start_.starts_with("\x1f\x8b"))  // [RFC 1952]
    read_ = read_gzip(raw, path_);
  else if (start_ == "\x28\xb5\x2f\xfd")  // [RFC 8878]
    read_ = read_zstd(raw, path_);
  else
    read_ = raw;
  require_text();
  plain_file_ = file_ && !start_.starts_with("\x1f\x8b") && start_ != "\x28\xb5\x2f\xfd";
}

// Rejects archives, whose bytes would otherwise be taken for text.
void TextInput::require_text() const {
  const auto refuse = [this](auto... what) { throw Error(cat(path_, ": ", what...), Exit::usage); };
  if (start_ == "PAR1") refuse("a parquet file: turn it into JSON lines with scripts/parquet_to_jsonl.py");
  for (const auto& [magic, kind] : {std::pair{"\xfd\x37zX", "an xz"}, {"PK\x03\x04", "a zip"}, {"7z\xbc\xaf", "a 7z"}})
    if (start_ == magic) refuse(kind, " file: only gzip and zstd are read; unpack it, or pipe its text into --input -");
  for (const auto& [end, magic, kind] : {std::tuple{".gz", "\x1f\x8b", "gzip"}, {".zst", "\x28\xb5\x2f\xfd", "zstd"}})
    if (path_.ends_with(end) && !start_.starts_with(magic))
      refuse("expected ", kind, " by its name, got something else: rename it if it is plain text");
}

size_t TextInput::read_raw(std::span<char> out) {
  for (;;) {
    const ssize_t got = ::read(fd_, out.data(), out.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_io(cat("reading at byte ", file_offset_), path_, errno);
    file_offset_ += got;
    return size_t(got);
  }
}

size_t TextInput::read(std::string& text, size_t bytes) {
  const size_t before = text.size();
  text.resize(before + bytes);
  size_t got = 0;
  for (size_t more = 1; got < bytes && more > 0; got += more) more = read_({text.data() + before + got, bytes - got});
  text.resize(before + got);
  return got;
}

void TextInput::skip(int64_t bytes) {
  if (plain_file_) {
    if (bytes > file_bytes(file_, path_) || ::lseek(fd_, off_t(bytes), SEEK_SET) < 0)
      throw Error(cat(path_, ": is shorter than it was: cannot go on at byte ", bytes));
    file_offset_ = bytes;
    start_used_ = start_.size();
    return;
  }
  std::string discarded;
  for (int64_t left = bytes; left > 0; discarded.clear()) {
    const size_t got = read(discarded, size_t(std::min<int64_t>(left, 1 << 20)));
    if (got == 0) throw Error(cat(path_, ": is shorter than it was: cannot go on at byte ", bytes));
    left -= int64_t(got);
  }
}

}  // namespace athanor
