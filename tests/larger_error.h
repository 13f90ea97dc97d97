// The larger of two errors of a comparison.
#pragma once

namespace athanor::testing {

// NaN if either is NaN, which std::max would hide: no bound holds for it.
inline double larger_error(double a, double b) { return a != a || b <= a ? a : b; }

}  // namespace athanor::testing
