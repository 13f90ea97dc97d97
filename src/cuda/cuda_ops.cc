#include "cuda/cuda_ops.h"

#include <chrono>
#include <cstdio>

namespace athanor::cuda {

namespace {

template <class Report>
std::string gain(const Report& r) {
  if (r.best_microseconds <= 0) return "";
  char text[64];
  std::snprintf(text, sizeof text, "; %.2f ms instead of %.2f ms per micro-batch", r.best_microseconds * 1e-3,
                r.first_microseconds * 1e-3);
  return text;
}

std::string name_of(size_t cudnn) { return cudnn ? cat(cudnn) : "not used"; }

}  // namespace

std::string CudaOps::search(const Tunable& ops, double seconds) {
  const auto start = std::chrono::steady_clock::now();
  // Attention gets at most half of the time, because GEMMs matter more.
  const AttentionRunner::SearchReport a = sizes_.attention.search(ops, seconds / 2, stream_);
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
  const GemmRunner::SearchReport r = gemm().search(ops.gemms, seconds - spent.count(), stream_, ops.of_quantized);
  const std::string own = r.own ? cat(" (", r.own, " by the program's own kernel)") : "";
  const std::string fused = r.epilogues ? cat(", ", r.fused, " of ", r.epilogues, " epilogues fused", own) : "";
  std::string text = cat("GEMMs: ", r.problems, " different ones, ", r.timed, " tried", fused, gain(r));
  if (a.problems > 0)
    text += cat("; attention: ", a.problems, " problems, ", a.timed, " tried, ", a.own,
                " of them for the program's own kernels, ", a.timed - a.own, " for cuDNN's", gain(a));
  return text;
}

std::string CudaOps::export_choices() const {
  return to_json(gemm().key(), gemm().choices(), {sizes_.attention.version(), sizes_.attention.choices()});
}

std::string CudaOps::import_choices(const std::string& text) {
  const ChosenAttention file = parse_gemm_choices(text).attention;
  if (file.cudnn && *file.cudnn != sizes_.attention.version())
    return cat("cuDNN was ", name_of(*file.cudnn), " and is ", name_of(sizes_.attention.version()));
  std::string why = gemm().import_choices(text);
  if (why.empty()) sizes_.attention.take(file.choices);
  return why;
}

std::string CudaOps::key() const {
  const GemmKey& k = gemm().key();
  const size_t cudnn = sizes_.attention.version();
  return cat(k.gpu, ", driver ", k.driver, ", cuBLASLt ", k.cublaslt, ", workspace ", k.workspace_bytes,
             cudnn ? cat(", cuDNN ", cudnn) : "");
}

}  // namespace athanor::cuda
