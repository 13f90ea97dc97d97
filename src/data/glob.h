// Expands file name patterns (* ? [abc]) in an order that is independent of locale and file system.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace athanor {

// Files that match a pattern, sorted by bytes of their names; may be empty. The name of an existing file matches
// itself, whatever characters it contains.
std::vector<std::string> match_glob(const std::string& pattern);

// Like match_glob(), but throws Error(usage) naming the pattern if nothing matches.
std::vector<std::string> expand_glob(const std::string& pattern);

// A pattern that matches exactly this text.
std::string escape_glob(std::string_view text);

}  // namespace athanor
