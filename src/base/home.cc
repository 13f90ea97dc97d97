#include "base/home.h"

#include <cstdlib>

#include "base/error.h"

namespace athanor {

std::string expand_home(const std::string& path) {
  if (!path.starts_with('~')) return path;
  const size_t slash = path.find('/');
  if (slash == std::string::npos && path.size() > 1) return path;  // "~file": a file name that starts with ~
  const char* home = std::getenv("HOME");
  if (slash > 1 && path.size() > 1)
    throw Error(cat(path, ": expected ~/ for the home folder, since ~USER is not expanded: write the full path, or ./",
                    path, " for a folder of that name"),
                Exit::usage);
  if (!home || !*home)
    throw Error(cat(path, ": ~ stands for the folder in HOME, which is not set: set HOME or write the full path"),
                Exit::usage);
  return home + path.substr(1);
}

}  // namespace athanor
