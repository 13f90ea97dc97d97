#include "cuda/gemm_race.h"

#include <algorithm>
namespace athanor::cuda {
namespace {

constexpr int kRounds = 3;
constexpr double kRoundMicroseconds = 300;  // launches of a round last so long at least
constexpr int kMostLaunches = 30;           // of a round

}  // namespace

GemmRunner::Race::Race(GemmRunner& runner, const Gemm& op, bool again, cudaStream_t stream)
    : runner_(runner),
      problem_(problem_of(op)),
      trial_(op, runner.scratch(op)),
      watch_(stream),
      again_(again),
      stream_(stream) {
  if (can_fuse(problem_)) plan_ = runner.describe(problem_);
}

cublasStatus_t GemmRunner::Race::run(const Gemm& op, const Candidate& candidate) {
  plan_.algorithm = candidate.algorithm;
  if (!candidate.in_parts) return runner_.launch(op, plan_, trial_.scratch(), stream_);
  runner_.run_in_parts(op, trial_.scratch(), stream_);
  return CUBLAS_STATUS_SUCCESS;
}

double GemmRunner::Race::microseconds(const Candidate& candidate, int launches) {
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
  const double microseconds = watch_.microseconds([&] {
    for (int i = 0; i < launches && status == CUBLAS_STATUS_SUCCESS; ++i) {
      Gemm one = trial_.next();
      status = run(one, candidate);
      one.again = true;
      if (again_ && status == CUBLAS_STATUS_SUCCESS) status = run(one, candidate);
    }
  });
  if (status == CUBLAS_STATUS_SUCCESS) return microseconds / launches;
  refusal_ = status;
  return kNever;
}

std::vector<double> GemmRunner::Race::in_turns(std::span<const Candidate> candidates) {
  std::vector<double> best(candidates.size(), kNever);
  std::vector<int> launches(candidates.size());
  for (size_t i = 0; i < candidates.size(); ++i) {
    microseconds(candidates[i], 1);  // loads the kernel
    launches[i] =
        static_cast<int>(std::clamp(kRoundMicroseconds / microseconds(candidates[i], 1), 1.0, double{kMostLaunches}));
  }
  for (int round = 0; round < kRounds; ++round)
    for (size_t i = 0; i < candidates.size(); ++i)
      best[i] = std::min(best[i], microseconds(candidates[i], launches[i]));
  return best;
}

}  // namespace athanor::cuda
