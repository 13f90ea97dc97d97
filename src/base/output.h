// Output: text on a file descriptor that a person or another program reads. Writes wait only briefly for a reader that
// does not read (Ctrl-S, a paused pager, a hung connection): unwritten text is kept and written by later calls.
#pragma once
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/file.h"

namespace athanor {

// Not thread-safe.
class Output {
 public:
  static constexpr std::chrono::milliseconds kWait{250}, kWaitAtEnd{2000};
  static constexpr size_t kMaxPending = size_t{256} << 10;

  explicit Output(int fd) : fd_(fd) {}
  ~Output();  // waits up to kWaitAtEnd to write pending text
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  // Returns 0 or the errno of a failed write. Waits up to kWait, unless the last call timed out. Text that does not fit
  // into kMaxPending is dropped; the number of dropped calls is written as soon as the reader continues.
  int write(std::string_view text);
  // Drops the text if it cannot be written at once or is preceded by pending text. Ignores errors.
  void offer(std::string_view text);

 private:
  enum class Way { direct, own, socket, polled };
  void look();
  ssize_t put(std::string_view text) const;
  int advance(std::chrono::milliseconds wait);

  int fd_;
  dev_t device_ = 0, rdev_ = 0;  // identity of the file at fd_ when it was last checked
  ino_t inode_ = 0;
  Way way_ = Way::direct;
  Fd own_;  // this file reopened with O_NONBLOCK, which must not be set on a file description that others share
  std::string pending_;
  int64_t left_out_ = 0;
  bool stuck_ = false;  // the last call timed out
};

}  // namespace athanor
