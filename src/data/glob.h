// File name patterns (* ? [abc]) to file names, in an order that no locale or file system changes.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace athanor {

// Files that a pattern matches, in byte order of their names; perhaps none. An existing file's own name matches itself,
// whatever characters it has.
std::vector<std::string> match_glob(const std::string& pattern);

// The same; no match is an Error(usage) naming the pattern.
std::vector<std::string> expand_glob(const std::string& pattern);

// A pattern that matches exactly this text.
std::string escape_glob(std::string_view text);

}  // namespace athanor
