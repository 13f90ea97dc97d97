// For tests of limits in seconds.
#pragma once
#include <gtest/gtest.h>

#include <functional>
#include <initializer_list>

namespace athanor::testing {

// For what depends on a limit that a machine with other work may not keep either: again with larger ones, until
// attempt() accepts what it has seen.
inline void patiently(std::initializer_list<double> limits, const std::function<bool(double limit)>& attempt) {
  for (const double limit : limits)
    if (attempt(limit)) return;
  ADD_FAILURE() << "not even with a limit of " << std::data(limits)[limits.size() - 1] << " s";
}

}  // namespace athanor::testing
