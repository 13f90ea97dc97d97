#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdlib>
#include <mutex>
#include <utility>

#include "base/escape.h"

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

spdlog::logger& logger() {
  static const auto instance = [] {
    auto made = spdlog::stderr_color_mt("athanor");
    made->set_pattern("%Y-%m-%d %H:%M:%S.%e %^%l%$ %v");
    return made;
  }();
  return *instance;
}

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
  const bool color = options.color && isatty(STDERR_FILENO) && !std::getenv("NO_COLOR");
  for (auto& sink : l.sinks())
    if (auto* s = dynamic_cast<spdlog::sinks::stderr_color_sink_mt*>(sink.get()))
      s->set_color_mode(color ? spdlog::color_mode::always : spdlog::color_mode::never);
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
