// Chooses between cuDNN's attention, where it has a plan, and the program's own kernels. A choice by autotuning is
// saved with the run, since rounding depends on it. Before autotuning, cuDNN computes whole sequences, and the
// program's own kernels compute documents and windows, since only they skip all masked blocks.
#pragma once
#include <cuda_runtime_api.h>

#include <memory>
#include <string>
#include <vector>

#include "cuda/attention/cudnn_attention.h"
#include "cuda/gemm/choices.h"
#include "ops/tuning.h"
namespace athanor::cuda {

class AttentionRunner {
 public:
  // The program's own kernels alone, without cuDNN.
  struct Own {
    std::string why = "";  // reason why cuDNN is not used
  };
  AttentionRunner() = default;
  explicit AttentionRunner(Own own) : own_(std::move(own)) {}
  // autotuned: also use the program's own kernels where search() finds them faster.
  AttentionRunner(std::unique_ptr<CudnnAttention> cudnn, bool autotuned);

  // Maximum over all candidates, so that the memory plan stays valid after a search.
  template <class Op>
  size_t scratch(const Op& op) const;
  template <class Op>
  void run(const Op& op, void* scratch, cudaStream_t stream) const;
  // Whether kernels that fuse RoPE's backward (AttentionBwd::cos_sin) may compute the op. cuDNN's do not fuse it.
  bool fuses(const AttentionBwd& op) const;

  // Times all candidates, on random numbers, for every distinct problem that has no choice yet. Allocates memory for
  // one problem at a time.
  struct SearchReport {
    int problems = 0, timed = 0;  // number of distinct problems, and of those timed
    int own = 0;                  // timed problems for which the program's own kernels were chosen
    // time summed over all launches of the timed problems: with the first candidate, and with the chosen one
    double first_microseconds = 0, best_microseconds = 0;
  };
  SearchReport search(const Tunable& ops, double seconds, cudaStream_t stream);

  // See Tuning.
  size_t wanted_scratch(const Tunable& ops) const;
  size_t allow_scratch(size_t bytes);
  std::string describe(const Tunable& ops) const;

  const AttentionChoices& choices() const { return choices_; }
  void take(const AttentionChoices& choices);
  size_t version() const { return cudnn_ ? cudnn_->version() : 0; }  // version of cuDNN; 0: not used

 private:
  template <class Op>
  std::string name_of(const Op& op) const;
  // Kernels that can compute the op, in order of preference among equally fast ones.
  template <class Op>
  std::vector<AttentionKernels> candidates(const Op& op) const;
  template <class Op>
  AttentionKernels chosen(const Op& op) const;
  template <class Op>
  size_t scratch_of(AttentionKernels by, const Op& op) const;
  void run_cudnn(const AttentionFwd& op, void* scratch, cudaStream_t stream) const;
  void run_cudnn(const AttentionBwd& op, void* scratch, cudaStream_t stream) const;
  template <class Op>
  void run_by(AttentionKernels by, const Op& op, void* scratch, cudaStream_t stream) const;
  template <class Op>
  AttentionChoice time_all(const Op& like, double* first_microseconds, cudaStream_t stream) const;
  template <class Op>
  std::string whose(const Op& op) const;
  int64_t tokens() const { return cudnn_ ? cudnn_->tokens() : 0; }  // tokens per sequence

  std::unique_ptr<CudnnAttention> cudnn_;
  Own own_;  // set without cuDNN
  bool autotuned_ = false;
  AttentionChoices choices_;
};
}  // namespace athanor::cuda
