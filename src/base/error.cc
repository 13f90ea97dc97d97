#include "base/error.h"

#include <cstring>

namespace athanor {

void check_failed(const char* file, int line, const char* condition, const std::string& message) {
  const char* src = std::strstr(file, "src/");
  throw Error(cat("internal check failed at ", src ? src : file, ":", line, ": ", condition,
                  message.empty() ? "" : ": ", message));
}

}  // namespace athanor
