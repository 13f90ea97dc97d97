// Finding and opening a GEMM plug-in.
#include "cpu/gemm_plugin.h"

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

const GemmPlugin* load_gemm_plugin(const std::string& name, std::string* why) {
  const std::string file = cat("lib", name, ".so");
  for (const std::filesystem::path& dir : plugin_dirs()) {
    const std::filesystem::path path = dir / file;
    std::error_code failed;
    if (!std::filesystem::exists(path, failed)) continue;
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) {
      const char* reason = dlerror();
      *why = cat(path.string(), " does not load: ", reason ? reason : "unknown reason");
      return nullptr;
    }
    using Entry = const GemmPlugin* (*)();
    const auto entry = reinterpret_cast<Entry>(dlsym(library, "athanor_gemm_plugin"));
    const GemmPlugin* plugin = entry ? entry() : nullptr;
    if (plugin && plugin->version == kGemmPluginVersion) return plugin;
    *why = cat(path.string(), " is not a GEMM plug-in of version ", kGemmPluginVersion);
    return nullptr;
  }
  *why = cat("no ", file, " in ATHANOR_PLUGIN_DIR, beside the program or in ../lib/athanor");
  return nullptr;
}

}  // namespace athanor
