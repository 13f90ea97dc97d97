// The C interface between the program and optional GEMM libraries in shared objects next to it.
#pragma once
#include <cstdint>
#include <string>

namespace athanor {

constexpr int kGemmPluginVersion = 1;

// Filled by the plug-in's `const athanor::GemmPlugin* athanor_gemm_plugin()`.
struct GemmPlugin {
  int version;              // kGemmPluginVersion
  const char* description;  // library and version
  // d[m, n] = op(a) op(b) [+ d] in f32 on the calling thread alone; row-major with row strides. 0 = done.
  int (*sgemm)(bool ta, bool tb, int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* b,
               int64_t ldb, float* d, int64_t ldd, bool accumulate);
};

// Opens lib<name>.so on the first call, from $ATHANOR_PLUGIN_DIR, the program's folder, or ../lib/athanor. Returns
// nullptr and the reason in *why if no library works. Never closed: worker threads may keep state in it.
const GemmPlugin* load_gemm_plugin(const std::string& name, std::string* why);

}  // namespace athanor
