// Computes the amax of an op's output (NormFwd::amax and others), chunk by chunk while it is in cache. A maximum does
// not depend on the order, so the result is the same for any number of threads.
#pragma once
#include "tensor/tensor.h"

namespace athanor {

class Amax {
 public:
  explicit Amax(const Tensor& amax);  // [1] f32, set to 0 here; absent: add() does nothing
  // Includes elements [begin, end) of a contiguous tensor, after they were written; thread-safe.
  void add(const Tensor& of, int64_t begin, int64_t end) const;
  void add_rows(const Tensor& of, int64_t begin, int64_t end) const { add(of, begin * of.cols(), end * of.cols()); }

 private:
  float* amax_;
};

}  // namespace athanor
