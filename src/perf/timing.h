// Measurements of host time.
#pragma once
#include <chrono>

#include "base/median.h"

namespace athanor {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

}  // namespace athanor
