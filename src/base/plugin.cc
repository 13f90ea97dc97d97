#include "base/plugin.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <vector>

#include "base/error.h"

namespace athanor {
namespace {

std::vector<std::filesystem::path> plugin_dirs() {
  std::vector<std::filesystem::path> dirs;
  if (const char* dir = std::getenv("ATHANOR_PLUGIN_DIR"); dir && *dir) dirs.push_back(dir);
  std::error_code failed;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", failed);
  if (!failed) {
    dirs.push_back(self.parent_path());
    dirs.push_back(self.parent_path() / ".." / "lib" / "athanor");
  }
  return dirs;
}

}  // namespace

const void* load_plugin(const std::string& name, const char* entry, std::string* why) {
  const std::string file = cat("lib", name, ".so");
  for (const std::filesystem::path& dir : plugin_dirs()) {
    const std::filesystem::path path = dir / file;
    std::error_code failed;
    if (!std::filesystem::exists(path, failed)) continue;
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) {
      const char* reason = dlerror();
      *why = cat(path.string(), " cannot be loaded: ", reason ? reason : "unknown reason");
      return nullptr;
    }
    using Entry = const void* (*)();
    if (const auto call = reinterpret_cast<Entry>(dlsym(library, entry))) return call();
    *why = cat(path.string(), " has no function ", entry);
    return nullptr;
  }
  *why = cat("no ", file, " in ATHANOR_PLUGIN_DIR, next to the program or in ../lib/athanor");
  return nullptr;
}

}  // namespace athanor
