// What a fuzz target says of its input: either an Error ends a call, or what follows it holds.
#pragma once
#include <cstdlib>

#include "base/error.h"

namespace athanor {

template <class Fn>
void survive(Fn&& fn) {
  try {
    fn();
  } catch (const Error&) {
  }
}

inline void require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace athanor
