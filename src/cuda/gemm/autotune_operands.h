// Operands for timing GEMMs: random numbers, mostly not in the L2 cache.
#pragma once
#include <vector>

#include "cuda/autotune.h"
#include "cuda/gemm/gemm.h"
namespace athanor::cuda {

// One matrix (or bias) with the problem's alignment. Random, because a GPU runs faster on zeros than on real data.
class AutotuneMatrix {
 public:
  AutotuneMatrix(DType dtype, int64_t elements, int align);
  char* data() const { return memory_.data() + offset_; }
  void fill();

 private:
  DType dtype_;
  size_t bytes_;
  DeviceMemory memory_;
  int offset_;
};

// Several copies of an op's operands, so that a launch finds few of its own in the L2 cache.
class AutotuneOperands {
 public:
  AutotuneOperands(const LibraryGemm& gemm, size_t scratch_bytes);
  LibraryGemm next();   // the GEMM on the next copy of its operands
  LibraryGemm fresh();  // the GEMM on a copy whose d and aux are refilled
  void* scratch() const { return scratch_.data(); }

 private:
  struct Copy;
  LibraryGemm on(const Copy&) const;
  struct Copy {
    AutotuneMatrix a, b, d, bias, aux, a_scales, b_scales, scalars;
  };
  LibraryGemm gemm_;
  DeviceMemory scratch_, positions_;
  std::vector<Copy> copies_;
  size_t next_copy_ = 0;
};

}  // namespace athanor::cuda
