// oneDNN as a GEMM plug-in. Every call runs on the calling thread only: the program's own threads distribute the tiles,
// so that results are bit-identical for any number of threads.
#include <dnnl.h>
#include <omp.h>

#include <sstream>
#include <string>

#include "cpu/gemm_plugin.h"

namespace {

int sgemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* b, int64_t ldb,
          float* d, int64_t ldd, bool accumulate) {
  omp_set_num_threads(1);  // affects this thread only: a cheap store
  return dnnl_sgemm(ta ? 'T' : 'N', tb ? 'T' : 'N', m, n, k, 1.0f, a, lda, b, ldb, accumulate ? 1.0f : 0.0f, d, ldd) ==
                 dnnl_success
             ? 0
             : 1;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const athanor::GemmPlugin* athanor_gemm_plugin() {
  static const std::string description = [] {
    const dnnl_version_t* v = dnnl_version();
    std::ostringstream out;
    out << "oneDNN " << v->major << "." << v->minor << "." << v->patch;
    return out.str();
  }();
  static const athanor::GemmPlugin plugin{athanor::kGemmPluginVersion, description.c_str(), sgemm};
  return &plugin;
}
