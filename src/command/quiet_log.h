// QuietLog: silences the log, except warnings and errors, while plans are computed that will not run.
#pragma once
#include <algorithm>

#include "base/log.h"

namespace athanor {

class QuietLog {
 public:
  explicit QuietLog(log::Level level) : level_(level) { log::configure({.level = std::max(level, log::Level::warn)}); }
  ~QuietLog() { log::configure({.level = level_}); }
  QuietLog(const QuietLog&) = delete;
  QuietLog& operator=(const QuietLog&) = delete;

 private:
  log::Level level_;
};

}  // namespace athanor
