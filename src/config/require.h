// A check of a configuration: Error(usage) with the parts as its text, unless it holds.
#pragma once
#include "base/error.h"

namespace athanor {

template <class... A>
void require(bool ok, const A&... parts) {
  if (!ok) throw Error(cat(parts...), Exit::usage);
}

}  // namespace athanor
