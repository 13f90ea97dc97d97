// Locates and opens a GEMM plug-in.
#include "cpu/gemm_plugin.h"

#include "base/error.h"
#include "base/plugin.h"

namespace athanor {

const GemmPlugin* load_gemm_plugin(const std::string& name, std::string* why) {
  const auto* plugin = static_cast<const GemmPlugin*>(load_plugin(name, "athanor_gemm_plugin", why));
  if (!plugin || plugin->version == kGemmPluginVersion) return plugin;
  *why = cat("lib", name, ".so is not a GEMM plug-in of version ", kGemmPluginVersion);
  return nullptr;
}

}  // namespace athanor
