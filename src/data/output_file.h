// A file that appears under its name only when it is whole and on disk: written as NAME.tmp, synced, then renamed.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace athanor {

class OutputFile {
 public:
  explicit OutputFile(std::string path);  // creates missing parent folders
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;
  ~OutputFile();  // removes what was not published

  const std::string& path() const { return path_; }
  void append(std::string_view bytes);
  void overwrite(int64_t offset, std::string_view bytes);
  void close();    // syncs; only publish() may follow
  void publish();  // renames to the final name, and syncs the folder

 private:
  void write_at(int64_t offset, std::string_view bytes);

  std::string path_, temporary_;
  int64_t size_ = 0;
  int fd_ = -1;
};

}  // namespace athanor
