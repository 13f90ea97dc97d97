// GEMMs on a GPU through cuBLASLt, or by the program's own kernel (wgmma_gemm.h). The library is column-major, so d
// = a b is computed as d^T = b^T a^T, without copies. Each problem keeps its algorithm, and partial sums over k are
// added in f32 and in a fixed order, so results are the same bits in every run. Epilogues are fused where autotuning
// found that faster, else run as separate kernels. Launches allocate and synchronize nothing, so they may be captured.
// Single-threaded, on the GPU current at construction.
#pragma once
#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "cuda/gemm/choices.h"
#include "cuda/libraries/cublaslt_table.h"
#include "cuda/quantize/scaled_gemm.h"
#include "cuda/scratch.h"
#include "ops/gemm_problem.h"
#include "ops/tuning.h"
namespace athanor::cuda {

// Whether the library may compute the epilogue in the same pass.
bool can_fuse(const GemmProblem& p);

// cuBLASLt's type. Throws Error for types without GEMMs.
cudaDataType_t type_of(DType dtype);
cublasComputeType_t compute_type_of(const GemmProblem& p);

// A GEMM as it is passed to the library, with plain or quantized operands.
struct LibraryGemm {
  Gemm op;
  ScaleLayout a_layout{}, b_layout{};                    // none: plain operands
  const void *a_scales = nullptr, *b_scales = nullptr;   // in device memory
  const float *a_global = nullptr, *b_global = nullptr;  // FP4 only: scales of the whole operands
  GemmScalars* scalars = nullptr;                        // FP4 only: device memory for alpha and beta
  bool fast = false;
  LibraryGemm(const Gemm& gemm) : op(gemm) {}
  bool quantized() const { return a_layout != ScaleLayout::none; }
};
GemmProblem problem_of(const LibraryGemm&);

class GemmRunner {
 public:
  struct Options {
    size_t workspace_bytes = kWorkspaceBytes;
  };
  explicit GemmRunner(const CublasLtTable& table) : GemmRunner(table, Options{}) {}
  GemmRunner(const CublasLtTable& table, Options options);

  size_t scratch(const Gemm& op) const { return cuda::scratch(op, options_.workspace_bytes); }
  void run(const Gemm& op, void* scratch, cudaStream_t stream) { run(LibraryGemm(op), scratch, stream); }

  // GEMMs of quantized operands: by the library if it has them, else on operands dequantized to f32 (gemm/scaled.cc).
  size_t scratch(const ScaledGemm& op) { return cuda::scratch(op, native(op), options_.workspace_bytes); }
  void run(const ScaledGemm& op, void* scratch, cudaStream_t stream);
  // Not possible also if the library has no algorithm, which is logged as a warning once for each kind of GEMM.
  NativeGemm native(const ScaledGemm& op);
  int capability() const { return capability_; }  // compute capability of the GPU: 90 for 9.0
  bool fuses(const Gemm& op) const { return own_gemm_takes(problem_of(op), capability_); }
  bool fuses(const GroupedGemm& op) const { return grouped_gemm_takes(op, capability_); }

  // Autotunes the distinct problems of the ops that have no measured choice, those with the most work first: times the
  // heuristic's best results, for epilogues also separate kernels, and keeps the fastest. Uses only the alignment of
  // the ops' addresses. Allocates memory for one problem at a time. Before a search, GEMMs use the heuristic's first
  // result without fused epilogues. Times vary, so another search may choose, and round, differently.
  struct SearchReport {
    int problems = 0, timed = 0;  // number of distinct problems, and of those timed within the limit
    // number of timed problems with an epilogue, with a fused one, and with the program's own kernel
    int epilogues = 0, fused = 0, own = 0;
    double first_microseconds = 0, best_microseconds = 0;  // over all launches of the timed problems
  };
  SearchReport search(std::span<const Gemm> ops, double seconds, cudaStream_t stream,
                      std::span<const ScaledGemm> of_quantized = {});

  // See Tuning.
  GemmTime time(const Gemm& op, bool recompute, cudaStream_t stream) {
    return time(LibraryGemm(op), recompute, stream);
  }
  GemmTime time(const ScaledGemm& op, cudaStream_t stream);

  // All choices so far, including imported ones.
  std::string export_choices() const { return to_json(key_, choices_); }
  const GemmKey& key() const { return key_; }
  const GemmChoices& choices() const { return choices_; }
  // Replaces choices by those of an earlier run. Returns the reason why they do not apply (another GPU or library:
  // GEMMs are autotuned again and may round differently), or an empty string if they do. Throws Error if the text is
  // damaged.
  std::string import_choices(const std::string& text);

 private:
  template <class Pointer>
  using Owned = std::unique_ptr<std::remove_pointer_t<Pointer>, cublasStatus_t (*)(Pointer)>;
  using Handle = Owned<cublasLtHandle_t>;
  using Layout = Owned<cublasLtMatrixLayout_t>;
  using Answers = std::vector<cublasLtMatmulHeuristicResult_t>;

  // The library's descriptors of a problem; its A and B are our b and a. No descriptors if GEMM and epilogue run
  // separately.
  struct Plan {
    Owned<cublasLtMatmulDesc_t> desc{nullptr, nullptr};
    Layout a{nullptr, nullptr}, b{nullptr, nullptr}, d{nullptr, nullptr};
    cublasLtMatmulAlgo_t algorithm{};
    bool in_parts = false;
    bool own = false;  // the program's own kernel; has no descriptors either
  };

  const Plan& plan_of(const GemmProblem& p);
  Plan describe(const GemmProblem& p) const;
  Answers ask(const GemmProblem& p, const Plan& plan, int most) const;
  // Same as ask(), but returns the library's status instead of throwing.
  std::pair<Answers, cublasStatus_t> answers(const GemmProblem& p, const Plan& plan, int most) const;
  bool offers(const GemmProblem& p) const;
  bool deterministic(const cublasLtMatmulAlgo_t& algorithm) const;
  // The library's check of an algorithm; usable: supported, within the workspace, and deterministic.
  struct Verdict {
    cublasStatus_t status = CUBLAS_STATUS_NOT_SUPPORTED;
    bool usable = false;
  };
  Verdict check(const Plan& plan, const cublasLtMatmulAlgo_t& algorithm) const;
  void check_imported(const GemmProblem& p, const Plan& plan) const;
  void run(const LibraryGemm& gemm, void* scratch, cudaStream_t stream);
  bool fused(const LibraryGemm& gemm);
  void run_in_parts(const LibraryGemm& gemm, void* scratch, cudaStream_t stream);
  cublasStatus_t launch(const LibraryGemm& gemm, const Plan& plan, void* scratch, cudaStream_t stream) const;
  LibraryGemm native_gemm(const ScaledGemm& op, const NativeGemm& native, void* scratch) const;
  Gemm decoded_gemm(const ScaledGemm& op, const NativeGemm& native, void* scratch) const;
  void require(cublasStatus_t status, const char* what, const GemmProblem& p) const;

  // A candidate for a problem: an algorithm of the library, the program's own kernel, or GEMM and epilogue as separate
  // kernels.
  struct Candidate {
    bool in_parts = false, own = false;
    cublasLtMatmulAlgo_t algorithm{};
  };
  class Timer;  // gemm/timer.h
  struct Timed;
  struct Searched {
    LibraryGemm gemm;
    GemmUse use;
  };
  std::vector<Searched> to_search(std::span<const Gemm> ops, std::span<const ScaledGemm> of_quantized);
  GemmTime time(const LibraryGemm& gemm, bool recompute, cudaStream_t stream);
  Timed time_candidates(const LibraryGemm& gemm, bool recompute, cudaStream_t stream);
  Candidate choice_of(const GemmProblem& p);
  GemmMethod method_of(const Candidate& candidate) const;

  CublasLtTable lt_;
  Options options_;
  Handle handle_;
  GemmKey key_;
  int capability_ = 0;
  std::map<GemmProblem, Plan> plans_;
  std::map<GemmProblem, bool> offered_;  // quantized GEMMs: whether the library has an algorithm
  std::set<std::string> told_;           // kinds of GEMMs without algorithm for which a warning was logged
  GemmChoices choices_;
};
}  // namespace athanor::cuda
