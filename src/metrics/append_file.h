// An append-only file of whole records, for logs. A record that could not be written completely is removed again; a
// file that cannot be written warns once and is retried with each record. After opening nothing throws.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "base/file.h"

namespace athanor {

class AppendFile {
 public:
  // Opens or creates `path` and truncates it to `size` bytes, or appends at its end if size < 0. Creates a missing
  // folder; does not follow a symbolic link. On failure warns and drops all records.
  explicit AppendFile(const std::string& path, int64_t size = -1)
      : AppendFile(parent_dir(path), base_name(path), size) {}
  // In the given folder, without following a link inside it.
  AppendFile(const std::string& folder, const std::string& name, int64_t size);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  // A single write; if true the kernel has the data.
  bool append(std::string_view record);
  const std::string& path() const { return path_; }

 private:
  void warn(const char* what, std::string_view reason);

  std::string path_;
  Fd file_;
  int64_t size_ = 0;   // bytes of complete records
  bool torn_ = false;  // part of a record follows the first size_ bytes
  bool warned_ = false;
};

}  // namespace athanor
