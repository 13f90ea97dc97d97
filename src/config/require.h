// Check of a configuration: throws Error(usage) with the concatenated parts as message unless `ok`.
#pragma once
#include <string_view>

#include "base/error.h"

namespace athanor {

template <class... A>
void require(bool ok, const A&... parts) {
  if (!ok) throw Error(cat(parts...), Exit::usage);
}

// Like require(), with a message that begins "where.key: ".
template <class... A>
void require_key(bool ok, std::string_view where, std::string_view key, const A&... parts) {
  require(ok, where, ".", key, ": ", parts...);
}

}  // namespace athanor
