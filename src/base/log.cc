#include "base/log.h"

#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <mutex>
#include <utility>

#include "base/escape.h"
#include "base/output.h"

namespace athanor::log {
namespace {

spdlog::level::level_enum to_spdlog(Level level) {
  switch (level) {
    case Level::debug:
      return spdlog::level::debug;
    case Level::info:
      return spdlog::level::info;
    case Level::warn:
      return spdlog::level::warn;
    case Level::error:
      return spdlog::level::err;
    case Level::off:
      return spdlog::level::off;
  }
  return spdlog::level::info;
}

const char* color_of(spdlog::level::level_enum level) {
  if (level == spdlog::level::debug) return "\x1b[36m";        // cyan
  if (level == spdlog::level::warn) return "\x1b[33m\x1b[1m";  // yellow
  if (level == spdlog::level::err) return "\x1b[31m\x1b[1m";   // red
  return "\x1b[32m";                                           // green
}

// Standard error, without ever waiting for its reader. The guard's mutex lets one line through at a time.
class StderrSink final : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
 public:
  void set_color(bool color) { color_ = color; }

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t formatted;
    formatter_->format(message, formatted);
    std::string line(formatted.data(), formatted.size());
    if (color_ && message.color_range_end > message.color_range_start) {
      line.insert(message.color_range_end, "\x1b[m");
      line.insert(message.color_range_start, color_of(message.level));
    }
    output_.write(line);
  }
  void flush_() override {}

 private:
  bool color_ = isatty(STDERR_FILENO) != 0;
  Output output_{STDERR_FILENO};
};

struct Logger {
  std::shared_ptr<StderrSink> sink = std::make_shared<StderrSink>();
  spdlog::logger lines{"athanor", sink};
  Logger() { lines.set_pattern("%Y-%m-%d %H:%M:%S.%e %^%l%$ %v"); }
};

Logger& shared_logger() {
  static Logger instance;
  return instance;
}
spdlog::logger& logger() { return shared_logger().lines; }

struct Guard {
  std::mutex mutex;
  std::function<void(bool)> around;
};

Guard& guard() {
  static Guard instance;
  return instance;
}

}  // namespace

void configure(const Options& options) {
  auto& l = logger();
  shared_logger().sink->set_color(options.color && isatty(STDERR_FILENO) && !std::getenv("NO_COLOR"));
  l.set_level(to_spdlog(options.level));
  if (options.rank > 0) l.set_pattern(cat("%Y-%m-%d %H:%M:%S.%e %^%l%$ [rank ", options.rank, "] %v"));
}

void write(Level level, const std::string& message) {
  if (!logger().should_log(to_spdlog(level))) return;
  const std::string shown = escape_controls(message);
  const std::lock_guard lock(guard().mutex);
  if (guard().around) guard().around(true);
  logger().log(to_spdlog(level), spdlog::string_view_t(shown.data(), shown.size()));
  if (guard().around) guard().around(false);
}

void set_guard(std::function<void(bool)> around) {
  const std::lock_guard lock(guard().mutex);
  guard().around = std::move(around);
}

}  // namespace athanor::log
