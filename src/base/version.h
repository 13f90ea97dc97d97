// What this program is: version, source revision, compiler. The revision is read from git at build time.
#pragma once
#include <string>

namespace athanor {

struct Version {
  std::string version;   // "0.1.0"
  std::string commit;    // "1a2b3c4d5e6f", "+dirty" behind it for changed sources, "unknown" outside git
  std::string compiler;  // "g++ 12.2.0"
  std::string build;     // "Release", "Release, sanitized"
};
Version program_version();

}  // namespace athanor
