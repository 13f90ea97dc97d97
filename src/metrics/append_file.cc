#include "metrics/append_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/log.h"

namespace athanor {
namespace {

// All of `data`, or the errno that stopped it.
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

AppendFile::AppendFile(std::string path, int64_t size) : path_(std::move(path)) {
  std::error_code ignored;  // open() reports
  const auto folder = std::filesystem::path(path_).parent_path();
  if (!folder.empty()) std::filesystem::create_directories(folder, ignored);
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd_ < 0) {
    warn("cannot be opened", errno);
    return;
  }
  if (size >= 0 && ::ftruncate(fd_, size) != 0) warn("cannot be cut", errno);
  struct stat info {};
  if (::fstat(fd_, &info) == 0 && S_ISREG(info.st_mode)) size_ = info.st_size;
}

AppendFile::~AppendFile() {
  if (fd_ >= 0 && ::close(fd_) != 0) warn("lost its last records", errno);  // NFS reports a full disk here
}

bool AppendFile::append(std::string_view record) {
  if (fd_ < 0) return false;
  if (torn_ && ::ftruncate(fd_, size_) != 0) return false;
  torn_ = false;
  if (const int error = write_all(fd_, record)) {
    torn_ = ::ftruncate(fd_, size_) != 0;
    warn("cannot be written", error);
    return false;
  }
  size_ += int64_t(record.size());
  return true;
}

void AppendFile::warn(const char* what, int error) {
  if (std::exchange(warned_, true)) return;
  log::warn("metrics: ", path_, " ", what, ": ", std::strerror(error),
            ": training goes on without it; free space or fix its permissions");
}

}  // namespace athanor
