// Version of this program, source revision and compiler. The revision is read from git at build time.
#pragma once
#include <string>

namespace athanor {

struct ProgramVersion {
  std::string version;   // "0.1.0"
  std::string commit;    // "1a2b3c4d5e6f", with "+dirty" for modified sources; "unknown" outside git
  std::string compiler;  // "g++ 12.2.0"
  std::string build;     // "Release", "Release, sanitized"
};
ProgramVersion program_version();

}  // namespace athanor
