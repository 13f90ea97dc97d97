#include "base/format.h"

#include <array>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <ctime>
#include <string_view>

#include "base/error.h"

namespace athanor {
namespace {

// Formats with three significant digits.
std::string three_digits(double value) { return format_text("%.*f", value < 9.995 ? 2 : value < 99.95 ? 1 : 0, value); }

// Formats like "2h05m": major unit without a leading zero, minor unit with one.
std::string two_units(int64_t major, char major_unit, int64_t minor, char minor_unit) {
  return cat(major, major_unit, minor < 10 ? "0" : "", minor, minor_unit);
}

}  // namespace

std::string format_text(const char* format, ...) {
  std::va_list args, again;
  va_start(args, format);
  va_copy(again, args);
  std::string text(size_t(std::vsnprintf(nullptr, 0, format, args)), '\0');
  std::vsnprintf(text.data(), text.size() + 1, format, again);
  va_end(again);
  va_end(args);
  return text;
}

std::string format_bytes(uint64_t bytes) {
  constexpr std::array<std::string_view, 7> kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1000) return cat(bytes, " B");
  double value = double(bytes);
  size_t unit = 0;
  for (; value >= 999.5 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  return cat(three_digits(value), " ", kUnits[unit]);
}

std::string format_count(double count) {
  constexpr std::array<std::string_view, 7> kUnits = {"", "k", "M", "G", "T", "P", "E"};
  if (!std::isfinite(count)) return "-";
  if (count < 0) return cat("-", format_count(-count));
  if (count < 999.5 && count == std::floor(count)) return cat(int64_t(count));
  size_t unit = 0;
  for (; count >= 999.5 && unit + 1 < kUnits.size(); ++unit) count /= 1000;
  if (count < 999.5) return cat(three_digits(count), kUnits[unit]);
  std::string scientific = format_text("%.2e", count * 1e18);  // FLOP budgets can exceed the largest prefix
  std::erase(scientific, '+');
  return scientific;
}

std::string format_duration(double seconds) {
  if (!std::isfinite(seconds)) return "-";
  if (seconds < 0) return cat("-", format_duration(-seconds));
  if (seconds < 0.9995) return cat(three_digits(seconds * 1e3), "ms");
  if (seconds < 59.95) return format_text("%.1fs", seconds);
  if (seconds >= 86400e5) return cat(format_count(seconds / (86400 * 365.25)), "y");
  const int64_t s = std::llround(seconds), minutes = s / 60, hours = s / 3600, days = s / 86400;
  if (hours == 0) return two_units(minutes, 'm', s % 60, 's');
  if (days == 0) return two_units(hours, 'h', minutes % 60, 'm');
  return two_units(days, 'd', hours % 24, 'h');
}

std::string format_percent(double fraction) {
  if (!std::isfinite(fraction)) return "-";
  return format_text("%.1f%%", fraction * 100);
}

std::string format_time(double unix_seconds, TimeZone zone) {
  constexpr double kFirst = -62135510400, kLast = 253402214400;  // years 1 to 9999, less one day at each end
  if (!(unix_seconds >= kFirst && unix_seconds <= kLast)) return "-";
  const auto seconds = std::time_t(std::floor(unix_seconds));
  std::tm parts{};
  if (!(zone == TimeZone::utc ? gmtime_r(&seconds, &parts) : localtime_r(&seconds, &parts))) return "-";
  return format_text("%04d-%02d-%02d %02d:%02d:%02d", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday,
                     parts.tm_hour, parts.tm_min, parts.tm_sec);
}

}  // namespace athanor
