// What products are tried on: operands of random numbers that are in no cache.
#pragma once
#include <vector>

#include "cuda/trial.h"
#include "ops/gemm.h"
namespace athanor::cuda {

// One matrix (or bias) of a problem, with the alignment that it has in the problem. Random numbers, since a GPU is
// faster on zeros than on what a model holds.
class TrialMatrix {
 public:
  TrialMatrix(DType dtype, int64_t elements, int align);
  char* data() const { return memory_.data() + offset_; }

 private:
  DeviceMemory memory_;
  int offset_;
};

// The operands of an op, so many times over that a launch finds little of its own in the L2 cache.
class GemmTrial {
 public:
  GemmTrial(const Gemm& op, size_t scratch_bytes);
  Gemm next();  // the op, on the next copy of its operands
  void* scratch() const { return scratch_.data(); }

 private:
  struct Copy {
    TrialMatrix a, b, d, bias, aux;
  };
  Gemm op_;
  DeviceMemory scratch_;
  std::vector<Copy> copies_;
  size_t turn_ = 0;
};

}  // namespace athanor::cuda
