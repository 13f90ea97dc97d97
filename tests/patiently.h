// For tests of limits in seconds.
#pragma once
#include <gtest/gtest.h>

#include <functional>
#include <initializer_list>

namespace athanor::testing {

// For checks against a time limit that a loaded machine may miss: retries with larger limits until attempt() succeeds.
inline void patiently(std::initializer_list<double> limits, const std::function<bool(double limit)>& attempt) {
  for (const double limit : limits)
    if (attempt(limit)) return;
  ADD_FAILURE() << "not even with a limit of " << std::data(limits)[limits.size() - 1] << " s";
}

}  // namespace athanor::testing
