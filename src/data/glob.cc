#include "data/glob.h"

#include <glob.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/error.h"
#include "base/file.h"

namespace athanor {

std::vector<std::string> match_glob(const std::string& pattern) {
  if (::access(pattern.c_str(), F_OK) == 0) return {pattern};
  glob_t found{};
  errno = 0;
  const int rc = ::glob(pattern.c_str(), GLOB_ERR, nullptr, &found);
  const int reason = rc == GLOB_NOSPACE ? ENOMEM : errno;
  std::vector<std::string> paths;
  if (rc == 0) paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  const bool nothing_there = rc == GLOB_NOMATCH || reason == ENOENT || reason == ENOTDIR;
  if (rc != 0 && !nothing_there) throw_io("listing", pattern, reason);
  std::sort(paths.begin(), paths.end());  // glob's own order depends on the locale
  return paths;
}

std::vector<std::string> expand_glob(const std::string& pattern) {
  std::vector<std::string> paths = match_glob(pattern);
  if (paths.empty()) {  // Megatron-LM names data sets without the extensions .bin and .idx
    paths = match_glob(pattern + ".bin");
    std::erase_if(paths, [](const std::string& path) {
      return ::access((path.substr(0, path.size() - 4) + ".idx").c_str(), F_OK) != 0;
    });
  }
  if (paths.empty())
    throw Error(
        cat("data: no file matches \"", pattern, "\": check the path; relative ones start at the working directory"),
        Exit::usage);
  return paths;
}

std::string escape_glob(std::string_view text) {
  std::string escaped;
  for (char c : text) {
    if (c == '*' || c == '?' || c == '[' || c == '\\') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

}  // namespace athanor
