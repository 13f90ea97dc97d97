// Paths that begin with the home folder, as people write them where no shell reads them: in configurations.
#pragma once
#include <string>

namespace athanor {

// "~" and "~/..." with HOME in place of the ~, as a shell reads them; other paths as they are. "~NAME/..." is an
// Error(usage).
std::string expand_home(const std::string& path);

}  // namespace athanor
