// The largest magnitude of what an op writes (NormFwd::amax and others), piece by piece while it is in the caches.
// A maximum does not depend on the order, so bits do not depend on the number of threads.
#pragma once
#include "tensor/tensor.h"

namespace athanor {

class Largest {
 public:
  explicit Largest(const Tensor& amax);  // [1] f32, which becomes 0; none: nothing is looked at
  // Elements of a tensor without gaps that have their values; any thread.
  void add(const Tensor& of, int64_t begin, int64_t end) const;
  void add_rows(const Tensor& of, int64_t begin, int64_t end) const { add(of, begin * of.cols(), end * of.cols()); }

 private:
  float* amax_;
};

}  // namespace athanor
