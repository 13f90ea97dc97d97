// Chooses between cuDNN's attention, where it has a plan, and the program's own kernels. A choice by trial is saved
// with the run, since rounding depends on it. Before a trial cuDNN computes whole sequences, and the program's own
// kernels documents and windows, for only they leave out all that is hidden.
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
  // by_trial: use own kernels also where search() finds them faster.
  AttentionRunner(std::unique_ptr<CudnnAttention> cudnn, bool by_trial);

  // Enough for either choice, so that the memory plan stays valid after a search.
  template <class Op>
  size_t scratch(const Op& op) const;
  template <class Op>
  void run(const Op& op, void* scratch, cudaStream_t stream) const;

  // Times both on random numbers for every distinct problem without a choice. Allocates memory for one at a time.
  struct SearchReport {
    int problems = 0, timed = 0, own = 0;                  // distinct; timed; of those, with own kernels chosen
    double first_microseconds = 0, best_microseconds = 0;  // sums over all launches of timed ones: cuDNN, chosen
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
  bool is_chosen(const AttentionProblem& p) const;  // cuDNN, of a problem that it supports
  template <class Op>
  AttentionChoice time_both(const Op& like, double* cudnn_microseconds, cudaStream_t stream) const;

  template <class Op>
  std::string whose(const Op& op) const;

  std::unique_ptr<CudnnAttention> cudnn_;
  std::string why_own_;  // reason if cuDNN is not available
  bool by_trial_ = false;
  AttentionChoices choices_;
};
}  // namespace athanor::cuda
