#include "cuda/gemm/timer.h"

#include "cuda/compare.h"
namespace athanor::cuda {
GemmRunner::Timer::Timer(GemmRunner& runner, const LibraryGemm& gemm, bool recompute, cudaStream_t stream)
    : runner_(runner),
      problem_(problem_of(gemm)),
      operands_(gemm, runner.scratch(gemm.op)),
      watch_(stream),
      recompute_(recompute),
      stream_(stream) {
  if (can_fuse(problem_)) plan_ = runner.describe(problem_);
}

cublasStatus_t GemmRunner::Timer::run(const LibraryGemm& gemm, const Candidate& candidate) {
  plan_.algorithm = candidate.algorithm;
  plan_.own = candidate.own;
  if (!candidate.in_parts) return runner_.launch(gemm, plan_, operands_.scratch(), stream_);
  runner_.run_in_parts(gemm, operands_.scratch(), stream_);
  return CUBLAS_STATUS_SUCCESS;
}

double GemmRunner::Timer::microseconds(const Candidate& candidate, int launches) {
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
  const double microseconds = watch_.microseconds([&] {
    for (int i = 0; i < launches && status == CUBLAS_STATUS_SUCCESS; ++i) {
      LibraryGemm one = operands_.next();
      status = run(one, candidate);
      one.op.recompute = true;
      if (recompute_ && status == CUBLAS_STATUS_SUCCESS) status = run(one, candidate);
    }
  });
  if (status == CUBLAS_STATUS_SUCCESS) return microseconds / launches;
  refusal_ = status;
  return kNever;
}

std::vector<double> GemmRunner::Timer::interleaved(std::span<const Candidate> candidates) {
  return best_interleaved(candidates.size(),
                          [&](size_t i, int launches) { return microseconds(candidates[i], launches); });
}

std::string GemmRunner::Timer::difference(const Candidate& expected, const Candidate& candidate) {
  const LibraryGemm gemm = operands_.fresh();
  const auto run_by = [&](const Candidate& one) { runner_.require(run(gemm, one), "autotuning failed", problem_); };
  return cuda::difference(
      gemm.op, stream_, [&] { run_by(expected); }, [&] { run_by(candidate); });
}

}  // namespace athanor::cuda
