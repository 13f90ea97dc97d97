// Whether this is a build with sanitizers, which look for errors of memory and threads: settings that differ in numbers
// alone are then left to the other builds.
#pragma once

namespace athanor {

#ifdef ATHANOR_SANITIZED
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

}  // namespace athanor
