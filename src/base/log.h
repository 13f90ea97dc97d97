// Log lines of the program on stderr, as plain functions, so that only log.cc includes spdlog.
#pragma once
#include <functional>
#include <string>

#include "base/error.h"

namespace athanor::log {

enum class Level { debug, info, warn, error, off };

struct Options {
  Level level = Level::info;
  int rank = 0;
  bool color = true;  // only on a terminal, never with NO_COLOR
};
void configure(const Options&);

// Escapes control characters in the message, which may quote files and other programs (base/escape.h).
void write(Level, const std::string& message);

// Called with true before and false after every line, one line at a time; it must not log. The progress bar hides
// itself there. An empty function removes it.
void set_guard(std::function<void(bool begin)>);

template <class... A>
void debug(const A&... parts) {
  write(Level::debug, cat(parts...));
}
template <class... A>
void info(const A&... parts) {
  write(Level::info, cat(parts...));
}
template <class... A>
void warn(const A&... parts) {
  write(Level::warn, cat(parts...));
}
template <class... A>
void error(const A&... parts) {
  write(Level::error, cat(parts...));
}

}  // namespace athanor::log
