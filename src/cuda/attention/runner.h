// Whose kernels compute attention: cuDNN's where it has a plan, else the program's own. Where a trial decides, the
// choice of a problem is part of the run, since rounding follows from it; before one cuDNN's stand.
#pragma once
#include <cuda_runtime_api.h>

#include <memory>

#include "cuda/attention/cudnn_attention.h"
#include "cuda/gemm/choices.h"
#include "ops/tuning.h"
namespace athanor::cuda {

class AttentionRunner {
 public:
  AttentionRunner() = default;  // the program's own
  explicit AttentionRunner(std::string why_own) : why_own_(std::move(why_own)) {}
  // by_trial: own kernels also where search() finds them faster.
  AttentionRunner(std::unique_ptr<CudnnAttention> cudnn, bool by_trial);

  // Enough for whoever may be chosen, so that what was planned holds after a search.
  template <class Op>
  size_t scratch(const Op& op) const;
  template <class Op>
  void run(const Op& op, void* scratch, cudaStream_t stream) const;

  // Times both on random numbers for every different problem that has no choice yet. Holds memory for one at a time.
  struct SearchReport {
    int problems = 0, timed = 0, own = 0;                  // different ones; measured; of those the program's own
    double first_microseconds = 0, best_microseconds = 0;  // of all launches of the measured ones: cuDNN's, the chosen
  };
  SearchReport search(const Tunable& ops, double seconds, cudaStream_t stream);

  // As in Tuning.
  size_t wanted_scratch(const Tunable& ops) const;
  size_t allow_scratch(size_t bytes) { return cudnn_ ? cudnn_->allow_scratch(bytes) : bytes; }
  std::string describe(const Tunable& ops) const;

  const AttentionChoices& choices() const { return choices_; }
  void take(const AttentionChoices& choices);
  size_t version() const { return cudnn_ ? cudnn_->version() : 0; }  // of cuDNN; 0: it is not used

 private:
  template <class Op>
  bool by_cudnn(const Op& op) const;
  template <class Op>
  AttentionChoice time_both(const Op& like, double* cudnn_microseconds, cudaStream_t stream) const;

  template <class Op>
  std::string whose(const Op& op) const;

  std::unique_ptr<CudnnAttention> cudnn_;
  std::string why_own_;  // where there is no cuDNN
  bool by_trial_ = false;
  AttentionChoices choices_;
};
}  // namespace athanor::cuda
