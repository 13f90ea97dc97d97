// An input of `athanor tokenize` as a byte stream: a plain, gzip or zstd file, or standard input; detected by its first
// bytes.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/file.h"

namespace athanor {

// Reads up to the size of the buffer; returns 0 at the end. Errors name the file and the offset.
using ReadBytes = std::function<size_t(std::span<char>)>;

// Each function decompresses one format; consecutive members or frames are concatenated. Truncated input is an Error.
// In a build without the library they throw an Error(usage) that names it.
ReadBytes read_gzip(ReadBytes raw, const std::string& path);
ReadBytes read_zstd(ReadBytes raw, const std::string& path);

class TextInput {
 public:
  explicit TextInput(const std::string& path);  // "-": standard input
  TextInput(const TextInput&) = delete;
  // Appends up to `bytes` bytes, fewer only at the end; returns the number appended.
  size_t read(std::string& text, size_t bytes);
  void skip(int64_t bytes);                             // throws if there are fewer bytes
  int64_t file_offset() const { return file_offset_; }  // bytes read from the file, before decompression

 private:
  void require_text() const;
  size_t read_raw(std::span<char> out);

  std::string path_;
  Fd file_;
  int fd_ = -1;
  int64_t file_offset_ = 0;
  std::string start_;  // bytes read to detect the format
  size_t start_used_ = 0;
  bool plain_file_ = false;
  ReadBytes read_;
};

}  // namespace athanor
