// An append-only file of whole records, for logs. A partially written record is removed again. If the file cannot be
// written, it warns once and retries with each record. Nothing throws after opening.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/file.h"

namespace athanor {

struct AppendOptions {
  int64_t size = -1;  // truncates the file to this many bytes; negative: appends at the end
  // First record of a file that is recreated because the old one was deleted or renamed during the run; absent: the
  // file is not recreated, and later records are dropped with a warning.
  std::optional<std::string> head = "";
};

class AppendFile {
 public:
  // Opens or creates `path`. Creates a missing folder; does not follow a symbolic link. On failure warns and drops all
  // records.
  explicit AppendFile(const std::string& path, AppendOptions options = {})
      : AppendFile(parent_dir(path), base_name(path), std::move(options)) {}
  // Like the other constructor, but does not follow a symbolic link inside `folder`.
  AppendFile(std::string folder, std::string name, AppendOptions options);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  // Appends with a single write; returns true if the kernel has the data.
  bool append(std::string_view record);
  const std::string& path() const { return path_; }

 private:
  bool open();
  bool is_lost() const;
  bool make_again();
  bool write(std::string_view record);
  void warn(const char* what, std::string_view reason);

  std::string folder_, name_, path_;
  std::optional<std::string> head_;
  Fd file_;
  int64_t size_ = 0;      // bytes of complete records
  bool torn_ = false;     // part of a record follows the first size_ bytes
  bool regular_ = false;  // true for a regular file, which may be deleted; false for a pipe or device
  bool warned_ = false;
};

}  // namespace athanor
