// Expands "~" in paths that no shell has seen, such as those of configuration files.
#pragma once
#include <string>

namespace athanor {

// Replaces the ~ of "~" and "~/..." by $HOME; returns other paths unchanged. "~NAME/..." is an Error(usage).
std::string expand_home(const std::string& path);

}  // namespace athanor
