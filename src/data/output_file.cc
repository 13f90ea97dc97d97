#include "data/output_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace athanor {
namespace {

[[noreturn]] void fail(const std::string& path, const char* action) {
  const int reason = errno;
  throw Error(cat(path, ": cannot ", action, ": ", std::strerror(reason)));
}

std::string folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

}  // namespace

OutputFile::OutputFile(std::string path) : path_(std::move(path)), temporary_(path_ + ".tmp") {
  std::error_code failed;
  std::filesystem::create_directories(folder_of(path_), failed);
  if (failed) throw Error(cat(folder_of(path_), ": cannot create the folder: ", failed.message()));
  fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd_ < 0) fail(temporary_, "create");
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::exchange(other.temporary_, {})),
      size_(other.size_),
      fd_(std::exchange(other.fd_, -1)) {}

OutputFile::~OutputFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void OutputFile::write_at(int64_t offset, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::pwrite(fd_, bytes.data(), bytes.size(), offset);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) fail(temporary_, "write");
    bytes.remove_prefix(size_t(put));
    offset += put;
  }
}

void OutputFile::append(std::string_view bytes) {
  write_at(size_, bytes);
  size_ += int64_t(bytes.size());
}

void OutputFile::overwrite(int64_t offset, std::string_view bytes) {
  CHECK(offset >= 0 && int64_t(bytes.size()) <= size_ - offset, "bytes ", offset, " + ", bytes.size(), " of ", size_);
  write_at(offset, bytes);
}

void OutputFile::close() {
  if (::fsync(fd_) != 0) fail(temporary_, "sync");
  if (::close(std::exchange(fd_, -1)) != 0) fail(temporary_, "close");
}

void OutputFile::publish() {
  CHECK(fd_ < 0 && !temporary_.empty(), path_, " is not closed or already published");
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail(path_, "rename its temporary file");
  temporary_.clear();
  const int folder = ::open(folder_of(path_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) fail(folder_of(path_), "open");
  const int rc = ::fsync(folder);
  ::close(folder);
  if (rc != 0 && errno != EINVAL) fail(folder_of(path_), "sync");  // EINVAL: a file system that cannot sync folders
}

}  // namespace athanor
