// A terminal for tests: a pseudo-terminal, and what a person would see on it. Knows \r, \n, erase-to-end-of-line, UTF-8
// and wrapping; any other control code is an error.
#pragma once
#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "base/error.h"

namespace athanor {

class Terminal {
 public:
  explicit Terminal(int columns) : columns_(columns), master_(::posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK)) {
    if (master_ < 0 || ::grantpt(master_) != 0 || ::unlockpt(master_) != 0) throw Error("no pseudo-terminal");
    slave_ = ::open(::ptsname(master_), O_RDWR | O_NOCTTY);
    resize(columns);
  }
  ~Terminal() {
    ::close(slave_);
    ::close(master_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  int fd() const { return slave_; }
  void resize(int columns) {
    columns_ = columns;
    winsize size{};
    size.ws_col = static_cast<unsigned short>(columns);
    size.ws_row = 24;
    ::ioctl(slave_, TIOCSWINSZ, &size);
  }
  // Takes in what was written since; the kernel holds 4 KiB, so call it after every few lines.
  void drain() {
    char bytes[4096];
    for (ssize_t n; (n = ::read(master_, bytes, sizeof(bytes))) > 0;) {
      raw_.append(bytes, size_t(n));
      for (ssize_t i = 0; i < n; ++i) put(bytes[i]);
    }
  }
  // The lines on the screen, without trailing blanks; the line of the cursor last.
  std::vector<std::string> screen() {
    drain();
    std::vector<std::string> lines;
    for (const auto& row : rows_) {
      std::string line;
      for (const std::string& cell : row) line += cell;
      lines.push_back(line.substr(0, line.find_last_not_of(' ') + 1));
    }
    return lines;
  }
  const std::string& raw() const { return raw_; }

 private:
  void put(char c) {
    if (!escape_.empty() || c == '\x1b') {
      escape_ += c;
      if (escape_ == "\x1b[K") {
        rows_.back().resize(std::min(rows_.back().size(), column_));
        escape_.clear();
      } else if (escape_.size() >= 3) {
        throw Error(cat("unknown control code after ESC: ", escape_.substr(1)));
      }
    } else if (c == '\r') {
      column_ = 0;
    } else if (c == '\n') {
      rows_.emplace_back();
      rows_.back().resize(column_, " ");
    } else if ((c & 0xC0) == 0x80) {
      rows_.back().at(column_ - 1) += c;
    } else {
      if (int(column_) == columns_) {
        rows_.emplace_back();
        column_ = 0;
      }
      if (rows_.back().size() <= column_) rows_.back().resize(column_ + 1, " ");
      rows_.back()[column_++] = std::string(1, c);
    }
  }

  int columns_, master_, slave_ = -1;
  std::string raw_, escape_;
  std::vector<std::vector<std::string>> rows_{1};
  size_t column_ = 0;
};

// Sets or unsets (null) an environment variable for a scope.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const char* value) : name_(name) {
    const char* before = ::getenv(name);
    had_ = before != nullptr;
    if (had_) before_ = before;
    set(value);
  }
  ~ScopedVariable() { set(had_ ? before_.c_str() : nullptr); }
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;

 private:
  void set(const char* value) { value ? ::setenv(name_.c_str(), value, 1) : ::unsetenv(name_.c_str()); }

  std::string name_, before_;
  bool had_;
};

// Standard error goes to `fd` for a scope.
class StderrTo {
 public:
  explicit StderrTo(int fd) : before_(::dup(STDERR_FILENO)) { ::dup2(fd, STDERR_FILENO); }
  ~StderrTo() {
    ::dup2(before_, STDERR_FILENO);
    ::close(before_);
  }
  StderrTo(const StderrTo&) = delete;
  StderrTo& operator=(const StderrTo&) = delete;

 private:
  int before_;
};

}  // namespace athanor
