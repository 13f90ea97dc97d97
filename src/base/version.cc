#include "base/version.h"

#include "athanor_version.inc"
#include "base/error.h"

namespace athanor {

ProgramVersion program_version() {
#if defined(__clang__)
  const std::string compiler = cat("clang++ ", __clang_major__, ".", __clang_minor__, ".", __clang_patchlevel__);
#else
  const std::string compiler = cat("g++ ", __GNUC__, ".", __GNUC_MINOR__, ".", __GNUC_PATCHLEVEL__);
#endif
#if defined(ATHANOR_SANITIZED)
  const char* build = "sanitized";
#elif defined(NDEBUG)
  const char* build = "release";
#else
  const char* build = "debug";
#endif
  return {ATHANOR_VERSION, ATHANOR_COMMIT, compiler, build};
}

}  // namespace athanor
