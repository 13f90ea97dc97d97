#include "base/format_time.h"

#include <cmath>
#include <cstdio>
#include <ctime>

namespace athanor {

std::string format_time(double unix_seconds, TimeZone zone) {
  constexpr double kFirst = -62135510400, kLast = 253402214400;  // years 1 to 9999, less one day at each end
  if (!(unix_seconds >= kFirst && unix_seconds <= kLast)) return "-";
  const auto seconds = std::time_t(std::floor(unix_seconds));
  std::tm parts{};
  if (!(zone == TimeZone::utc ? gmtime_r(&seconds, &parts) : localtime_r(&seconds, &parts))) return "-";
  char text[80];
  std::snprintf(text, sizeof text, "%04d-%02d-%02d %02d:%02d:%02d", parts.tm_year + 1900, parts.tm_mon + 1,
                parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec);
  return text;
}

}  // namespace athanor
