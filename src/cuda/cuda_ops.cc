#include "cuda/cuda_ops.h"

#include <cstdio>

namespace athanor::cuda {

std::string CudaOps::search(std::span<const Gemm> products, double seconds) {
  const GemmRunner::SearchReport r = gemm().search(products, seconds, stream_);
  char gain[64] = "";
  if (r.best_microseconds > 0)
    std::snprintf(gain, sizeof gain, "; %.2f ms instead of %.2f ms per micro-batch", r.best_microseconds * 1e-3,
                  r.first_microseconds * 1e-3);
  const std::string fused = r.epilogues ? cat(", ", r.fused, " of ", r.epilogues, " epilogues fused") : "";
  return cat("matrix products: ", r.problems, " different ones, ", r.timed, " tried", fused, gain);
}

std::string CudaOps::key() const {
  const GemmKey& k = gemm().key();
  return cat(k.gpu, ", driver ", k.driver, ", cuBLASLt ", k.cublaslt, ", workspace ", k.workspace_bytes);
}

}  // namespace athanor::cuda
