// kSanitized: true in builds with sanitizers, which look for errors of memory and threads. Tests then leave out
// settings that differ only in numbers.
#pragma once

namespace athanor {

#ifdef ATHANOR_SANITIZED
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

}  // namespace athanor
