// Dropout of elements and of sequences by counter-based random numbers: the op of ops/dropout.h. One block per row;
// memory bound, for elements bound by the arithmetic of the random numbers. No GPU has run it.
#include "cuda/host_tools.h"
#include "cuda/kernels.h"
#include "cuda/ptx/ptx.h"

namespace athanor::cuda {
namespace {

constexpr int kPathThreads = 128;

// Reads only the scalar fields of `op`, none of its tensors.
template <class T>
__global__ void __launch_bounds__(kPathThreads) drop_path(T* y, const T* x, const T* residual, const StepState* state,
                                                          const int64_t* first, int columns, DropPath op) {
  ptx::wait_for_earlier_kernels();
  const int64_t row = blockIdx.x;
  const uint64_t stream = DropPath::stream_at(op.stream, *state);
  float factor = op.factor(stream, *first, row, 0, columns);
  for (int c = static_cast<int>(threadIdx.x); c < columns; c += kPathThreads) {
    const int64_t at = row * columns + c;
    if (op.elements) factor = op.factor(stream, *first, row, c, columns);
    const float before = residual ? to_float(residual[at]) : 0.f;
    y[at] = from_float<T>(factor == 0 ? before : fmaf(factor, to_float(x[at]), before));
  }
}
}  // namespace

void run(const DropPath& op, void*, cudaStream_t stream) {
  if (op.y.numel() == 0) return;
  by_type(op.y.dtype, [&]<class T>() {
    const LaunchConfig config{dim3(grid_size(op.y.rows())), dim3(kPathThreads), 0, stream};
    CUDA_CHECK(launch(drop_path<T>, config, data<T>(op.y), data<T>(op.x), data<T>(op.residual),
                      static_cast<const StepState*>(op.state.data), data<int64_t>(op.first),
                      static_cast<int>(op.y.cols()), op));
  });
}

}  // namespace athanor::cuda
