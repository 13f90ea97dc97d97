#include "metrics/append_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/log.h"

namespace athanor {
namespace {

// Writes all of `data`; returns 0 or the errno.
int write_all(int fd, std::string_view data) {
  while (!data.empty()) {
    const ssize_t n = ::write(fd, data.data(), data.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    if (n == 0) return ENOSPC;
    data.remove_prefix(size_t(n));
  }
  return 0;
}

}  // namespace

AppendFile::AppendFile(std::string folder, std::string name, AppendOptions options)
    : folder_(std::move(folder)),
      name_(std::move(name)),
      path_(cat(folder_, "/", name_)),
      head_(std::move(options.head)) {
  if (!open()) return;
  if (options.size < 0) return;
  if (::ftruncate(file_.get(), options.size) == 0)
    size_ = options.size;
  else
    warn("cannot be truncated", std::strerror(errno));
}

bool AppendFile::open() {
  try {
    make_dirs(folder_);
    file_ = create_below(folder_, name_, O_WRONLY | O_APPEND);
  } catch (const Error& e) {
    warn("cannot be opened", e.what());
    return false;
  }
  struct stat info {};
  regular_ = ::fstat(file_.get(), &info) == 0 && S_ISREG(info.st_mode);
  size_ = regular_ ? info.st_size : 0;
  torn_ = false;
  return true;
}

AppendFile::~AppendFile() {
  // NFS may report a full disk here.
  if (file_ && ::close(file_.release()) != 0) warn("lost its last records", std::strerror(errno));
}

bool AppendFile::append(std::string_view record) {
  if (!file_ || (regular_ && is_lost() && !make_again())) return false;
  return write(record);
}

// True if the path names no file, or another file than the open one. Returns false if the system reports another error.
bool AppendFile::is_lost() const {
  struct stat mine {};
  struct stat there {};
  if (::fstat(file_.get(), &mine) != 0) return false;
  if (::stat(path_.c_str(), &there) != 0) return errno == ENOENT || errno == ENOTDIR;
  return mine.st_dev != there.st_dev || mine.st_ino != there.st_ino;
}

bool AppendFile::make_again() {
  if (!head_) {
    warn("was deleted or renamed", "its further records are lost");
    return false;
  }
  if (!open()) return false;
  if (is_lost())
    regular_ = false;  // the file system's inode numbers are not reliable
  else
    log::warn("metrics: ", path_, " was deleted or renamed while this run writes it: it is made again, with the ",
              "records from here on");
  return size_ > 0 || head_->empty() || write(*head_);
}

bool AppendFile::write(std::string_view record) {
  if (torn_ && ::ftruncate(file_.get(), size_) != 0) return false;
  torn_ = false;
  if (const int error = write_all(file_.get(), record)) {
    torn_ = ::ftruncate(file_.get(), size_) != 0;
    warn("cannot be written", std::strerror(error));
    return false;
  }
  size_ += int64_t(record.size());
  return true;
}

void AppendFile::warn(const char* what, std::string_view reason) {
  if (std::exchange(warned_, true)) return;
  log::warn("metrics: ", path_, " ", what, ": ", reason,
            ": training continues without it; free space or fix its permissions");
}

}  // namespace athanor
