// Human-readable numbers (bytes, durations, counts: never wider than 10 characters) and points in time.
#pragma once
#include <cstdint>
#include <string>

namespace athanor {

// Formats values as std::printf does.
__attribute__((format(printf, 1, 2))) std::string format_text(const char* format, ...);
std::string format_bytes(uint64_t bytes);     // "512 B", "1.50 GiB"
std::string format_count(double count);       // "950", "12.3k", "124.4M", "1.27T"; powers of 1000
std::string format_duration(double seconds);  // "12.3ms", "45.3s", "3m05s", "2h11m", "3d04h"; "-" if not finite
std::string format_percent(double fraction);  // 0.4123 -> "41.2%"; "-" if not finite

enum class TimeZone : uint8_t { utc, local };

// "2026-08-21 09:12:45"; "-" outside the years 1 to 9999, as in damaged records.
std::string format_time(double unix_seconds, TimeZone zone);

}  // namespace athanor
