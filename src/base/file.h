// Files that never tear: checked reads and writes, atomic replacement (tmp, fsync, rename, fsync of the folder),
// mapping. Every failure is an Error naming what was done, the path, the system's reason and a remedy. Knows no format.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace athanor {

// Owns a file descriptor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd();
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

// Throws "doing path: reason: remedy" for an errno value. bytes_needed > 0 is told when space ran out.
[[noreturn]] void throw_io(std::string_view doing, const std::string& path, int error, int64_t bytes_needed = 0);

// Opens with O_CLOEXEC added. What is to be made goes through create_below or create_anew.
Fd open_file(const std::string& path, int flags);
// Makes or opens `name`, which may lie in subfolders, below `folder`, for writing; `flags` are those of open(2) besides
// O_CREAT. Subfolders that lack are made. No symbolic link below `folder` is followed, nor a pipe waited for: whoever
// may write into the folder must not choose which other file of ours is written. Throws Error.
Fd create_below(const std::string& folder, const std::string& name, int flags);
// The same in the folder of `path`, anew: what has this name, a link included, is removed.
Fd create_anew(const std::string& path, int flags);
// Opens a regular file for reading; a folder, pipe or device in its place is an error, never a hang.
Fd open_regular(const std::string& path);
int64_t file_bytes(const Fd& file, const std::string& path);

// These go on after EINTR and short transfers; anything less than all bytes is an Error.
void write_all(const Fd& file, std::span<const std::byte> bytes, const std::string& path);
void pread_all(const Fd& file, std::span<std::byte> bytes, int64_t offset, const std::string& path);
// Everything from the current position to the end; more than max_bytes is an Error before it is stored.
std::string read_all(const Fd& file, int64_t max_bytes, const std::string& path);
std::string read_file(const std::string& path, int64_t max_bytes);  // a regular file

// A folder that nobody had made before: anything at its path is an Error.
void make_new_dir(const std::string& path);
// The folder and its missing parents, durable when it returns; an existing folder is fine.
void make_dirs(const std::string& path);
// Makes creations, renames and removals in a folder durable.
void fsync_dir(const std::string& path);
void rename_path(const std::string& from, const std::string& to);
// Removes a file or a folder with all it holds; nothing there is fine. Symbolic links are not followed.
void remove_tree(const std::string& path);
std::string parent_dir(const std::string& path);
std::string base_name(const std::string& path);  // behind the last slash

// A new file, written front to back. Not durable before finish().
class OutputFile {
 public:
  explicit OutputFile(std::string path);  // an existing file is an error (EEXIST)
  const std::string& path() const { return path_; }
  int64_t written() const { return written_; }

  // Says how long the file will be: a full disk is found before the first byte instead of after the last.
  void reserve(int64_t total_bytes);
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  void finish();  // fsync and close, both checked

 private:
  std::string path_;
  Fd file_;
  int64_t written_ = 0, total_ = 0, flushed_ = 0;
};

// Replaces a file in one step: readers and crashes see the old content or the new, never a mixture. Without commit()
// the old content stays. A symbolic link at `path` is replaced, not followed.
class AtomicFile {
 public:
  explicit AtomicFile(std::string path);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();
  OutputFile& out() { return out_; }
  void commit();

 private:
  std::string path_;
  OutputFile out_;  // .NAME.PID.K.tmp in the same folder
  bool committed_ = false;
};

void write_file(const std::string& path, std::string_view content);  // atomically and durably

// A read-only mapping of a whole regular file. A file truncated by others while mapped kills the reader (SIGBUS):
// for files that others may still write, use pread_all.
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const std::string& path);
  MappedFile(const Fd& file, const std::string& path);
  MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  MappedFile& operator=(MappedFile&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~MappedFile();
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace athanor
