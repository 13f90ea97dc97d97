// An append-only file of whole records, for logs. A record that could not be written completely is removed again; a
// file that cannot be written warns once and is retried with each record. After opening nothing throws.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/file.h"

namespace athanor {

struct AppendOptions {
  int64_t size = -1;  // truncates the file to this many bytes; negative: appends at its end
  // First record of a file that is made again because the old one was deleted or renamed while records were written;
  // absent: such a file is not made again, and its further records are dropped with a warning.
  std::optional<std::string> head = "";
};

class AppendFile {
 public:
  // Opens or creates `path`. Creates a missing folder; does not follow a symbolic link. On failure warns and drops all
  // records.
  explicit AppendFile(const std::string& path, AppendOptions options = {})
      : AppendFile(parent_dir(path), base_name(path), std::move(options)) {}
  // In the given folder, without following a link inside it.
  AppendFile(std::string folder, std::string name, AppendOptions options);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  // A single write; if true the kernel has the data.
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
  bool regular_ = false;  // a file, which may be deleted; no pipe or device
  bool warned_ = false;
};

}  // namespace athanor
