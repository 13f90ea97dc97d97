// Integer arithmetic that never fails silently: narrowing, rounding up.
#pragma once
#include <cstdint>

#include "base/error.h"

namespace athanor {

template <class To, class From>
To narrow(From value) {
  const To result = static_cast<To>(value);
  CHECK(static_cast<From>(result) == value && ((result < To{}) == (value < From{})), "value ", +value,
        " does not fit its type");
  return result;
}

template <class T>
constexpr T div_ceil(T a, T b) {
  return (a + b - 1) / b;
}

template <class T>
constexpr T round_up(T a, T multiple) {
  return div_ceil(a, multiple) * multiple;
}

}  // namespace athanor
