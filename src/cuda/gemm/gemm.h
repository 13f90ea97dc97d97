// Matrix products on a GPU through cuBLASLt, or by the program's own kernel (wgmma_product.h). The library is
// column-major, so d = a b is computed as d^T = b^T a^T, without copies. Each problem keeps its algorithm, and partial
// sums over k are f32 in a fixed order, so a run repeats its bits. Epilogues are fused where a search found that
// faster, else run as separate kernels. Launches allocate and synchronize nothing, so they may be captured.
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

#include "cuda/codes.h"
#include "cuda/gemm/choices.h"
#include "cuda/libraries/cublaslt_table.h"
#include "cuda/scratch.h"
#include "ops/gemm_problem.h"
#include "ops/tuning.h"
namespace athanor::cuda {

// Whether the library may compute the epilogue in the same pass.
bool can_fuse(const GemmProblem& p);

// The library's type. Throws Error for types without products.
cudaDataType_t type_of(DType dtype);
cublasComputeType_t compute_type_of(const GemmProblem& p);

// A product as the library is asked for it: of matrices, or of codes with scales.
struct LibraryProduct {
  Gemm op;
  ScaleLayout a_layout{}, b_layout{};                    // none: matrices
  const void *a_scales = nullptr, *b_scales = nullptr;   // in device memory
  const float *a_global = nullptr, *b_global = nullptr;  // of codes of 4 bits: the scales of matrices
  ProductScalars* scalars = nullptr;                     // of these: memory for what the library reads
  bool fast = false;
  LibraryProduct(const Gemm& product) : op(product) {}
  bool codes() const { return a_layout != ScaleLayout::none; }
};
GemmProblem problem_of(const LibraryProduct&);

class GemmRunner {
 public:
  struct Options {
    size_t workspace_bytes = kWorkspaceBytes;
  };
  explicit GemmRunner(const CublasLtTable& table) : GemmRunner(table, Options{}) {}
  GemmRunner(const CublasLtTable& table, Options options);

  size_t scratch(const Gemm& op) const { return cuda::scratch(op, options_.workspace_bytes); }
  void run(const Gemm& op, void* scratch, cudaStream_t stream) { run(LibraryProduct(op), scratch, stream); }

  // Products of codes: by the library where it has them, else of what the codes stand for, as f32 (gemm/scaled.cc).
  size_t scratch(const ScaledGemm& op) { return cuda::scratch(op, native(op), options_.workspace_bytes); }
  void run(const ScaledGemm& op, void* scratch, cudaStream_t stream);
  // Not possible, too, where the library has no algorithm; a warning says so once for each kind of product.
  NativeProduct native(const ScaledGemm& op);
  int capability() const { return capability_; }  // of the GPU: 90 for 9.0
  bool fuses(const Gemm& op) const { return own_product_takes(problem_of(op), capability_); }

  // Times the library's best answers for every distinct problem of the ops without a measured choice, those with the
  // most work first, and keeps the fastest; for epilogues also the separate kernels. Uses only the alignment of the
  // ops' addresses. Allocates memory for one problem at a time. Before a search, products use the library's first
  // answer without fused epilogues. Times vary, so another search may choose, and round, differently.
  struct SearchReport {
    int problems = 0, timed = 0;                           // distinct ones; those timed within the limit
    int epilogues = 0, fused = 0, own = 0;                 // of the timed ones; by the program's own kernel
    double first_microseconds = 0, best_microseconds = 0;  // of all launches of the timed problems
  };
  SearchReport search(std::span<const Gemm> ops, double seconds, cudaStream_t stream,
                      std::span<const ScaledGemm> of_codes = {});

  // See Tuning.
  ProductTime time(const Gemm& op, bool recompute, cudaStream_t stream) {
    return time(LibraryProduct(op), recompute, stream);
  }
  ProductTime time(const ScaledGemm& op, cudaStream_t stream);

  // All choices so far, including imported ones.
  std::string export_choices() const { return to_json(key_, choices_); }
  const GemmKey& key() const { return key_; }
  const GemmChoices& choices() const { return choices_; }
  // Replaces choices by those of an earlier run. Returns why they do not apply (another GPU or library: products are
  // chosen again and may round differently); empty if they do. Throws Error if the text is damaged.
  std::string import_choices(const std::string& text);

 private:
  template <class Pointer>
  using Owned = std::unique_ptr<std::remove_pointer_t<Pointer>, cublasStatus_t (*)(Pointer)>;
  using Handle = Owned<cublasLtHandle_t>;
  using Layout = Owned<cublasLtMatrixLayout_t>;
  using Answers = std::vector<cublasLtMatmulHeuristicResult_t>;

  // The library's descriptors of a problem; its A and B are our b and a. Empty if product and epilogue run separately.
  struct Plan {
    Owned<cublasLtMatmulDesc_t> desc{nullptr, nullptr};
    Layout a{nullptr, nullptr}, b{nullptr, nullptr}, d{nullptr, nullptr};
    cublasLtMatmulAlgo_t algorithm{};
    bool in_parts = false;
    bool own = false;  // the program's own kernel; no descriptors either
  };

  const Plan& plan_of(const GemmProblem& p);
  Plan describe(const GemmProblem& p) const;
  Answers ask(const GemmProblem& p, const Plan& plan, int most) const;
  // As ask(), with the library's status instead of an error.
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
  void run(const LibraryProduct& product, void* scratch, cudaStream_t stream);
  bool fused(const LibraryProduct& product);
  void run_in_parts(const LibraryProduct& product, void* scratch, cudaStream_t stream);
  cublasStatus_t launch(const LibraryProduct& product, const Plan& plan, void* scratch, cudaStream_t stream) const;
  LibraryProduct native_product(const ScaledGemm& op, const NativeProduct& native, void* scratch) const;
  Gemm decoded_product(const ScaledGemm& op, const NativeProduct& native, void* scratch) const;
  void require(cublasStatus_t status, const char* what, const GemmProblem& p) const;

  // A candidate for a problem: an algorithm of the library, the program's own kernel, or product and epilogue
  // separately.
  struct Candidate {
    bool in_parts = false, own = false;
    cublasLtMatmulAlgo_t algorithm{};
  };
  class Timer;  // gemm/timer.h
  struct Timed;
  struct Searched {
    LibraryProduct product;
    ProductUse use;
  };
  std::vector<Searched> to_search(std::span<const Gemm> ops, std::span<const ScaledGemm> of_codes);
  ProductTime time(const LibraryProduct& product, bool recompute, cudaStream_t stream);
  Timed time_candidates(const LibraryProduct& product, bool recompute, cudaStream_t stream);
  Candidate choice_of(const GemmProblem& p);
  ProductMethod method_of(const Candidate& candidate) const;

  CublasLtTable lt_;
  Options options_;
  Handle handle_;
  GemmKey key_;
  int capability_ = 0;
  std::map<GemmProblem, Plan> plans_;
  std::map<GemmProblem, bool> offered_;  // products of codes: whether the library has an algorithm
  std::set<std::string> told_;           // kinds of products that it lacks
  GemmChoices choices_;
};
}  // namespace athanor::cuda
