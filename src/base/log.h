// Program-wide log lines on stderr, behind plain functions so that only log.cc compiles spdlog.
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

// Control characters in the message, which may quote files and other programs, are escaped (base/escape.h).
void write(Level, const std::string& message);

// Called with true before and with false after every line that is written, one line at a time; it must not log itself.
// A progress bar hides itself in it. An empty function removes it.
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
