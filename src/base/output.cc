#include "base/output.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/error.h"

namespace athanor {
namespace {

constexpr size_t kPolled = 512;  // bytes that a pipe or terminal accepts once poll() says so; POSIX's minimum PIPE_BUF

bool can_take(int fd, std::chrono::milliseconds wait) {
  pollfd entry{fd, POLLOUT, 0};
  return poll(&entry, 1, int(wait.count())) > 0;  // an error is reported by the following write
}

}  // namespace

Output::~Output() { advance(kWaitAtEnd); }

// Checks fd_ again: tests and daemons may replace the file behind the descriptor.
void Output::look() {
  struct stat s {};
  if (fstat(fd_, &s) != 0) {
    way_ = Way::direct, inode_ = 0;  // the write reports the reason
    return;
  }
  if (s.st_dev == device_ && s.st_ino == inode_ && s.st_rdev == rdev_) return;
  device_ = s.st_dev, inode_ = s.st_ino, rdev_ = s.st_rdev;
  own_ = {};
  way_ = S_ISSOCK(s.st_mode) ? Way::socket : Way::direct;
  const bool writable = (fcntl(fd_, F_GETFL) & O_ACCMODE) != O_RDONLY;
  if (!writable || !(S_ISFIFO(s.st_mode) || S_ISCHR(s.st_mode))) return;
  own_ = Fd(open(cat("/proc/self/fd/", fd_).c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  way_ = own_ ? Way::own : Way::polled;
}

ssize_t Output::put(std::string_view text) const {
  switch (way_) {
    case Way::direct:
      return ::write(fd_, text.data(), text.size());
    case Way::own:
      return ::write(own_.get(), text.data(), text.size());
    case Way::socket:
      return ::send(fd_, text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    case Way::polled:
      if (can_take(fd_, {})) return ::write(fd_, text.data(), std::min(text.size(), kPolled));
      errno = EAGAIN;
      return -1;
  }
  return -1;
}

int Output::advance(std::chrono::milliseconds wait) {
  const auto end = std::chrono::steady_clock::now() + wait;
  size_t written = 0;
  int error = 0;
  while (written < pending_.size()) {
    const ssize_t n = put(std::string_view(pending_).substr(written));
    if (n > 0) {
      written += size_t(n);
    } else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
      error = n == 0 ? ENOSPC : errno;
      written = pending_.size();
    } else {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
      if (left.count() <= 0 || !can_take(own_ ? own_.get() : fd_, left)) break;
    }
  }
  pending_.erase(0, written);
  stuck_ = !pending_.empty();
  return error;
}

int Output::write(std::string_view text) {
  look();
  if (stuck_) advance({});
  if (left_out_ > 0 && !stuck_) {
    pending_ += cat("[", left_out_, " lines were dropped, since nothing read them]\n");
    left_out_ = 0;
  }
  const bool fits = pending_.empty() || pending_.size() + text.size() <= kMaxPending;
  if (!fits || left_out_ > 0) {  // keeps the order: no text before the note about dropped lines
    ++left_out_;
  } else {
    pending_ += text;
  }
  return advance(stuck_ ? std::chrono::milliseconds{} : kWait);
}

void Output::offer(std::string_view text) {
  look();
  if (!pending_.empty() && advance({}) == 0 && stuck_) return;
  ssize_t n = 0;
  while ((n = put(text)) < 0 && errno == EINTR) {
  }
  if (n > 0) pending_ += text.substr(size_t(n));  // half a control sequence would corrupt what follows
}

}  // namespace athanor
