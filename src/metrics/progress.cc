#include "metrics/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "base/format.h"
#include "base/log.h"

namespace athanor {
namespace {

bool is_set(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && *value != '\0' && std::string_view(value) != "false";
}

bool utf8_locale() {
  for (const char* variable : {"LC_ALL", "LC_CTYPE", "LANG"}) {  // the first variable that is set decides
    const char* value = std::getenv(variable);
    if (value == nullptr || *value == '\0') continue;
    std::string name(value);
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return char(std::tolower(c)); });
    return name.find("utf-8") != std::string::npos || name.find("utf8") != std::string::npos;
  }
  return false;
}

int terminal_columns(int fd) {
  winsize size{};
  if (::ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

// Text with its width in terminal columns.
struct Cells {
  std::string text;
  int columns = 0;
};

Cells ascii(std::string text) {
  const int columns = int(text.size());
  return {std::move(text), columns};
}

Cells gauge(double fraction, int columns, bool unicode) {
  const int filled = int(std::floor(fraction * columns));
  Cells cells{"", columns};
  for (int i = 0; i < columns; ++i) cells.text += i < filled ? (unicode ? "\u2588" : "#") : (unicode ? "\u2591" : ".");
  return cells;
}

// The last `columns` losses as block characters scaled between their minimum and maximum; non-finite losses show as
// "!".
Cells sparkline(const std::vector<double>& losses, int columns, bool unicode) {
  static constexpr const char* kUnicode[] = {"\u2581", "\u2582", "\u2583", "\u2584",
                                             "\u2585", "\u2586", "\u2587", "\u2588"};
  static constexpr const char* kAscii[] = {"_", ".", "-", "~", "=", "+", "*", "#"};
  const size_t count = std::min(losses.size(), size_t(std::max(columns, 0)));
  const auto begin = losses.end() - std::ptrdiff_t(count);
  double low = INFINITY, high = -INFINITY;
  for (auto it = begin; it != losses.end(); ++it) {
    if (!std::isfinite(*it)) continue;
    low = std::min(low, *it);
    high = std::max(high, *it);
  }
  Cells cells{"", int(count)};
  for (auto it = begin; it != losses.end(); ++it) {
    if (!std::isfinite(*it)) {
      cells.text += "!";
      continue;
    }
    const double height = high > low ? (*it - low) / (high - low) : 0;
    const size_t level = std::min<size_t>(7, size_t(height * 8));
    cells.text += unicode ? kUnicode[level] : kAscii[level];
  }
  return cells;
}

}  // namespace

bool wants_bar(Progress progress, int fd) {
  if (progress != Progress::automatic) return progress == Progress::on;
  const char* term = std::getenv("TERM");
  const bool moves_cursor = term != nullptr && *term != '\0' && std::string_view(term) != "dumb";
  return moves_cursor && ::isatty(fd) && !is_set("NO_COLOR") && !is_set("CI");
}

std::string render_bar(const BarState& state, int columns, bool unicode) {
  const double fraction =
      state.total_steps > 0 ? std::clamp(double(state.step) / double(state.total_steps), 0.0, 1.0) : 0;
  // In order of importance; the first part that does not fit and all after it are dropped.
  const Cells parts[] = {
      ascii(cat(state.step, "/", state.total_steps)),
      ascii(format_text("loss %.4g", state.loss)),
      ascii(cat("ETA ", format_duration(state.eta_seconds))),
      gauge(fraction, 16, unicode),
      ascii(cat(format_count(state.tokens_per_second), " tok/s")),
      sparkline(state.losses, 24, unicode),
  };
  std::string line;
  int used = 0;
  for (const Cells& part : parts) {
    const int gap = used == 0 ? 0 : 2;
    if (used + gap + part.columns > columns) break;
    line.append(size_t(gap), ' ');
    line += part.text;
    used += gap + part.columns;
  }
  return line;
}

ProgressBar::ProgressBar(int fd) : fd_(fd), output_(fd), unicode_(utf8_locale()) {
  log::set_guard([this](bool begin) { begin ? hide() : show(); });
}

ProgressBar::~ProgressBar() {
  log::set_guard({});
  const std::lock_guard lock(mutex_);
  erase();
}

void ProgressBar::update(const BarState& state) {
  const std::lock_guard lock(mutex_);
  state_ = state;
  known_ = true;
  const auto now = std::chrono::steady_clock::now();
  if (hidden_ > 0 || now - last_draw_ < kInterval) return;
  last_draw_ = now;
  draw();
}

void ProgressBar::hide() {
  const std::lock_guard lock(mutex_);
  ++hidden_;
  erase();
}

void ProgressBar::show() {
  const std::lock_guard lock(mutex_);
  if (--hidden_ == 0 && known_) draw();
}

// Draws from the first column and erases the rest of a longer previous bar. The last column stays free: writing there
// makes some terminals wrap.
void ProgressBar::draw() {
  output_.offer(cat("\r", render_bar(state_, terminal_columns(fd_) - 1, unicode_), "\x1b[K"));
  drawn_ = true;
}

void ProgressBar::erase() {
  if (drawn_) output_.offer("\r\x1b[K");
  drawn_ = false;
}

}  // namespace athanor
