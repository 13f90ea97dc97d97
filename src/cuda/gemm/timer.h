// GemmRunner::Timer: runs and times candidates for one GEMM on its own operands.
#pragma once
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "cuda/gemm/autotune_operands.h"
#include "cuda/gemm/gemm.h"
namespace athanor::cuda {

class GemmRunner::Timer {
 public:
  static constexpr double kNever = std::numeric_limits<double>::infinity();  // time of a rejected candidate

  // recompute: the op is also recomputed, which is cheap only with a separate epilogue.
  Timer(GemmRunner& runner, const LibraryGemm& gemm, bool recompute, cudaStream_t stream);

  const GemmProblem& problem() const { return problem_; }
  const Plan& plan() const { return plan_; }                    // empty if the library must not be used
  double microseconds(const Candidate&, int launches);          // microseconds per launch
  cublasStatus_t refusal() const { return refusal_; }           // last error; CUBLAS_STATUS_SUCCESS: none
  std::vector<double> interleaved(std::span<const Candidate>);  // calls best_interleaved()
  std::string difference(const Candidate& expected, const Candidate& candidate);  // see cuda/compare.h

 private:
  cublasStatus_t run(const LibraryGemm& gemm, const Candidate& candidate);

  GemmRunner& runner_;
  GemmProblem problem_;
  AutotuneOperands operands_;
  Stopwatch watch_;
  Plan plan_;
  bool recompute_;
  cudaStream_t stream_;
  cublasStatus_t refusal_ = CUBLAS_STATUS_SUCCESS;
};

}  // namespace athanor::cuda
