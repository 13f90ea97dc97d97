// Human-readable points in time.
#pragma once
#include <cstdint>
#include <string>

namespace athanor {

enum class TimeZone : uint8_t { utc, local };

// "2026-08-21 09:12:45"; "-" outside the years 1 to 9999, as in damaged records.
std::string format_time(double unix_seconds, TimeZone zone);

}  // namespace athanor
