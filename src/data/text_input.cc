#include "data/text_input.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <tuple>
#include <utility>

#include "base/error.h"

namespace athanor {
namespace {

constexpr std::string_view kGzip = "\x1f\x8b";          // [RFC 1952]
constexpr std::string_view kZstd = "\x28\xb5\x2f\xfd";  // [RFC 8878, 3.1.1]

bool is_gzip(std::string_view start) { return start.starts_with(kGzip); }
// Skippable frames begin with 0x184D2A50 to 0x184D2A5F [RFC 8878, 3.1.2]; pzstd and the seekable format write them.
bool is_zstd(std::string_view start) {
  return start == kZstd ||
         (start.size() == 4 && (uint8_t(start[0]) & 0xf0) == 0x50 && start.substr(1) == "\x2a\x4d\x18");
}

}  // namespace

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
  if (is_gzip(start_))
    read_ = read_gzip(raw, path_);
  else if (is_zstd(start_))
    read_ = read_zstd(raw, path_);
  else
    read_ = raw;
  require_text();
  plain_file_ = file_ && !is_gzip(start_) && !is_zstd(start_);
}

// Rejects archives, whose bytes would otherwise be taken for text.
void TextInput::require_text() const {
  const auto refuse = [this](auto... what) { throw Error(cat(path_, ": ", what...), Exit::usage); };
  if (start_ == "PAR1") refuse("a parquet file, whose end must be read first: give it as a file, not through a pipe");
  constexpr std::pair<const char*, const char*> kOthers[] = {
      {"\xfd\x37zX", "an xz"}, {"PK\x03\x04", "a zip"}, {"7z\xbc\xaf", "a 7z"}, {"\x04\x22M\x18", "an lz4"}};
  const bool bzip2 = start_.starts_with("BZh") && start_.size() == 4 && start_[3] >= '1' && start_[3] <= '9';
  if (bzip2) refuse("a bzip2 file: only gzip and zstd are read; unpack it, or pipe its text into --input -");
  for (const auto& [magic, kind] : kOthers)
    if (start_ == magic) refuse(kind, " file: only gzip and zstd are read; unpack it, or pipe its text into --input -");
  for (const auto& [end, found, kind] : {std::tuple{".gz", is_gzip(start_), "gzip"},
                                         {".zst", is_zstd(start_), "zstd"},
                                         {".parquet", false, "parquet"}})  // such as a pointer of Git LFS
    if (path_.ends_with(end) && !found)
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
      throw Error(cat(path_, ": became shorter while it is read: cannot continue at byte ", bytes));
    file_offset_ = bytes;
    start_used_ = start_.size();
    return;
  }
  std::string discarded;
  for (int64_t left = bytes; left > 0; discarded.clear()) {
    const size_t got = read(discarded, size_t(std::min<int64_t>(left, 1 << 20)));
    if (got == 0) throw Error(cat(path_, ": became shorter while it is read: cannot continue at byte ", bytes));
    left -= int64_t(got);
  }
}

}  // namespace athanor
