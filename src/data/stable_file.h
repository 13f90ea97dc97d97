// A read-only file that must not change while open, used for shards and their side files. Uses pread(2) instead of
// mmap: if the file shrinks, this throws an Error where mmap would raise SIGBUS. Thread-safe once open.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/file.h"

namespace athanor {

class StableFile {
 public:
  static StableFile open(const std::string& path);

  const std::string& path() const { return path_; }
  int64_t bytes() const { return bytes_; }  // file size when it was opened

  // Reads bytes [offset, offset + out.size()). Throws if they are not all in the file, or if its size has changed.
  void read(int64_t offset, std::span<std::byte> out) const;
  template <class T>
  T value(int64_t offset) const {
    T value{};
    read(offset, std::as_writable_bytes(std::span(&value, 1)));
    return value;
  }

 private:
  std::string path_;
  Fd file_;
  int64_t bytes_ = 0;
};

}  // namespace athanor
