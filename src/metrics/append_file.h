// A file that grows by whole records, for logs: a record that does not fit on the disk leaves no part of itself, and a
// file that cannot be written warns once and tries again with the next record. Nothing here throws after opening.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "base/file.h"

namespace athanor {

class AppendFile {
 public:
  // Opens or creates `path` at `size` bytes (what lies behind is cut off), or at its end if size < 0. A folder that
  // lacks is made; a symbolic link is not followed. A file that cannot be opened warns; it then swallows every record.
  explicit AppendFile(const std::string& path, int64_t size = -1)
      : AppendFile(parent_dir(path), base_name(path), size) {}
  // In a folder of `folder`, which is not reached through a link either.
  AppendFile(const std::string& folder, const std::string& name, int64_t size);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  // In one write; the kernel has it when this returns true.
  bool append(std::string_view record);
  bool is_open() const { return bool(file_); }
  const std::string& path() const { return path_; }

 private:
  void warn(const char* what, std::string_view reason);

  std::string path_;
  Fd file_;
  int64_t size_ = 0;   // of whole records
  bool torn_ = false;  // a part of a record lies behind size_
  bool warned_ = false;
};

}  // namespace athanor
