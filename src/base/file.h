// File access: checked reads and writes, atomic replacement (temporary file, fsync, rename, fsync of the folder),
// mapping. Every failure is an Error with the action, the path, the system's reason and a remedy. Independent of file
// formats.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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

// Throws "doing path: reason: remedy" for an errno value. bytes_needed > 0 is reported when the disk is full.
[[noreturn]] void throw_io(std::string_view doing, const std::string& path, int error, int64_t bytes_needed = 0);

// Opens with O_CLOEXEC. To create files use create_below or create_anew.
Fd open_file(const std::string& path, int flags);
// Creates or opens `name`, which may contain subfolders, below `folder`, for writing; `flags` are those of open(2)
// besides O_CREAT. Creates missing subfolders. Follows no symbolic link below `folder` and blocks on no pipe, so that
// others who can write to the folder cannot redirect our writes to another file. Throws Error.
Fd create_below(const std::string& folder, const std::string& name, int flags);
// Creates a new file at `path`: removes an existing entry first, even a link.
Fd create_anew(const std::string& path, int flags);
// Opens a regular file for reading; a folder, pipe or device is an error and never blocks.
Fd open_regular(const std::string& path);
int64_t file_bytes(const Fd& file, const std::string& path);
// Bytes that this user may still write in a folder, without regard to quotas; nullopt if the file system does not
// report them.
std::optional<int64_t> free_bytes(const std::string& folder);
// Locks an open file exclusively until it is closed (flock); false if another process holds the lock. Where the file
// system has no locks (Lustre without -o flock, some NFS and FUSE), warns that `what` is not protected and returns
// true.
bool lock_file(const Fd& file, const std::string& path, std::string_view what);

// Raises the limit of open files to the hard limit; a soft limit of 1024 is common while the hard one is far higher.
void raise_file_limit();
// Raises the limit of open files as above; throws Error naming the limit if fewer than `more` further files can be
// opened. what: the owner of the files, for the message.
void require_file_descriptors(int64_t more, std::string_view what);

// The transfers below handle EINTR and partial transfers; a transfer of fewer bytes is an Error.
void write_all(const Fd& file, std::span<const std::byte> bytes, const std::string& path);
void pread_all(const Fd& file, std::span<std::byte> bytes, int64_t offset, const std::string& path);
// Reads from the current position to the end; more than max_bytes is an Error, and is not stored.
std::string read_all(const Fd& file, int64_t max_bytes, const std::string& path);
std::string read_file(const std::string& path, int64_t max_bytes);  // a regular file

// Creates a new folder; an existing entry of that name is an Error.
void make_new_dir(const std::string& path);
// Creates the folder and missing parents, durable on return; an existing folder is fine.
void make_dirs(const std::string& path);
// Makes creations, renames and removals in a folder durable.
void fsync_dir(const std::string& path);
void rename_path(const std::string& from, const std::string& to);
// Removes a file or a folder with its contents; no-op if missing. Does not follow symbolic links.
void remove_tree(const std::string& path);
// The names in a folder, sorted; empty if the folder does not exist.
std::vector<std::string> folder_names(const std::string& path);
std::string parent_dir(const std::string& path);
std::string base_name(const std::string& path);  // part after the last slash

// A new file, written sequentially. Not durable before finish().
class OutputFile {
 public:
  explicit OutputFile(std::string path);  // an existing file is an error (EEXIST)
  const std::string& path() const { return path_; }
  int64_t written() const { return written_; }

  // Reserves the final size, so that a full disk is detected before the first write.
  void reserve(int64_t total_bytes);
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  void finish();  // fsync and close, both checked

 private:
  std::string path_;
  Fd file_;
  int64_t written_ = 0, total_ = 0, flushed_ = 0;
};

// Replaces a file atomically: readers and crashes see the old or the new content, never a mixture. Without commit() the
// old content stays. Replaces a symbolic link at `path` instead of following it. A folder or device at
// `path` is an Error, also a link into /proc, as /dev/stdout is.
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
  OutputFile out_;  // .NAME.MARK.K.tmp in the same folder, process_mark()
  bool committed_ = false;
};

void write_file(const std::string& path, std::string_view content);  // atomically and durably
// Removes temporary files and folders next to `path` that killed processes of this host left of attempts to create it.
void remove_leftovers(const std::string& path);

// A read-only mapping of a whole regular file. Truncation by others while it is mapped raises SIGBUS in the reader; for
// files that others may still write, use pread_all.
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

// Replaces the ~ of "~" and "~/..." by $HOME in paths that no shell has seen, such as those of configuration files;
// returns other paths unchanged. "~NAME/..." is an Error(usage).
std::string expand_home(const std::string& path);

}  // namespace athanor
