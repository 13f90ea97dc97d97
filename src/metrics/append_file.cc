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

AppendFile::AppendFile(const std::string& folder, const std::string& name, int64_t size)
    : path_(cat(folder, "/", name)) {
  try {
    make_dirs(folder);
    file_ = create_below(folder, name, O_WRONLY | O_APPEND);
  } catch (const Error& e) {
    warn("cannot be opened", e.what());
    return;
  }
  if (size >= 0 && ::ftruncate(file_.get(), size) != 0) warn("cannot be cut", std::strerror(errno));
  struct stat info {};
  if (::fstat(file_.get(), &info) == 0 && S_ISREG(info.st_mode)) size_ = info.st_size;
}

AppendFile::~AppendFile() {
  // NFS reports a full disk here.
  if (file_ && ::close(file_.release()) != 0) warn("lost its last records", std::strerror(errno));
}

bool AppendFile::append(std::string_view record) {
  if (!file_) return false;
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
            ": training goes on without it; free space or fix its permissions");
}

}  // namespace athanor
