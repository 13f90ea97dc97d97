// The ops on a GPU: each launches on one stream, in order, and returns at once.
#pragma once
#include <cuda_runtime_api.h>

#include "cuda/kernels.h"
#include "ops/decorate.h"
namespace athanor::cuda {

class CudaOps final : public Decorated<CudaOps> {
 public:
  explicit CudaOps(cudaStream_t stream) : stream_(stream) {}

  struct Sizes {
    template <class Op>
    size_t scratch(const Op& op) const {
      if constexpr (requires { cuda::scratch(op); }) return cuda::scratch(op);
      return 0;
    }
  };
  const Sizes& inner() const { return sizes_; }

  template <class Op>
  void on(const Op& op, void* scratch) {
    if constexpr (requires { cuda::run(op, scratch, stream_); }) {
      cuda::run(op, scratch, stream_);
    } else {
      throw Error(cat(Op::kName, " has no CUDA kernel yet"));
    }
  }

 private:
  Sizes sizes_;
  cudaStream_t stream_;
};
}  // namespace athanor::cuda
