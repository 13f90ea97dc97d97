// An input of `athanor tokenize` as a stream of bytes: a plain, gzip or zstd file, or standard input. What it is shows
// in its first bytes, not in its name.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/file.h"

namespace athanor {

// Reads up to the size of the buffer; 0 at the end. Errors name the file and the offset.
using ReadBytes = std::function<size_t(std::span<char>)>;

// Each undoes one kind of compression; several members or frames in a row are one text. What ends in the middle is an
// Error. In a program built without the library they are an Error(usage) that says so.
ReadBytes read_gzip(ReadBytes raw, const std::string& path);
ReadBytes read_zstd(ReadBytes raw, const std::string& path);

class TextInput {
 public:
  explicit TextInput(const std::string& path);  // "-": standard input
  TextInput(const TextInput&) = delete;
  // Appends up to `bytes`, fewer only at the end; returns how many.
  size_t read(std::string& text, size_t bytes);
  void skip(int64_t bytes);                             // fewer bytes than that are an Error
  int64_t file_offset() const { return file_offset_; }  // bytes taken from the file, compressed as it is

 private:
  void require_text() const;
  size_t read_raw(std::span<char> out);

  std::string path_;
  Fd file_;
  int fd_ = -1;
  int64_t file_offset_ = 0;
  std::string start_;  // bytes that were read to see what the file is
  size_t start_used_ = 0;
  bool plain_file_ = false;
  ReadBytes read_;
};

}  // namespace athanor
