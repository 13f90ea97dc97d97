// 2:4 sparsity of weights: the ops of ops/two_of_four.h.
// Layout: flat buffers, a thread per group of four. Memory bound, each byte moves once. Not timed on a GPU yet.
#include "cuda/flat.h"
#include "cuda/kernels.h"

namespace athanor::cuda {
namespace {

constexpr int kGroup = static_cast<int>(kSparseGroup);

struct Group {
  float x[kGroup];
  uint32_t magnitudes[kGroup];
  template <class T>
  __device__ __forceinline__ explicit Group(const T* from) {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      x[i] = to_float(from[i]);
      magnitudes[i] = bf16_magnitude(__float_as_uint(x[i]));
    }
  }
  __device__ __forceinline__ bool kept(int i) const { return is_kept(magnitudes, i); }
};

__device__ __forceinline__ int64_t first_of_thread() {
  return (int64_t{blockIdx.x} * kTileThreads + threadIdx.x) * kGroup;
}

template <class T>
__global__ void __launch_bounds__(kTileThreads) keep_two_of_four(T* y, const T* x, int64_t n) {
  ptx::wait_for_earlier_kernels();
  const int64_t first = first_of_thread();
  if (first >= n) return;
  const Group group(x + first);
#pragma unroll
  for (int i = 0; i < kGroup; ++i) y[first + i] = from_float<T>(group.kept(i) ? group.x[i] : 0.f);
}

template <class T, class G>
__global__ void __launch_bounds__(kTileThreads)
    decay_pruned(G* grad, const T* w, const StepState* state, float decay, int64_t n) {
  ptx::wait_for_earlier_kernels();
  const int64_t first = first_of_thread();
  const float factor = pruned_decay(decay, *state);
  if (first >= n || factor == 0) return;
  const Group group(w + first);
#pragma unroll
  for (int i = 0; i < kGroup; ++i)
    if (!group.kept(i))
      grad[first + i] = from_float<G>(__fadd_rn(to_float(grad[first + i]), __fmul_rn(factor, group.x[i])));
}

LaunchConfig per_group(int64_t n, cudaStream_t stream) {
  return {dim3(grid_size(div_ceil(n / kGroup, int64_t{kTileThreads}))), dim3(kTileThreads), 0, stream};
}
}  // namespace

void run(const KeepTwoOfFour& op, void*, cudaStream_t stream) {
  const int64_t n = op.x.numel();
  if (n == 0) return;
  by_type(op.x.dtype, [&]<class T>() {
    CUDA_CHECK(launch(keep_two_of_four<T>, per_group(n, stream), data<T>(op.y), data<const T>(op.x), n));
  });
}

void run(const DecayPruned& op, void*, cudaStream_t stream) {
  const int64_t n = op.w.numel();
  if (n == 0) return;
  by_type(op.w.dtype, [&]<class T>() {
    by_type(op.grad.dtype, [&]<class G>() {
      CUDA_CHECK(launch(decay_pruned<T, G>, per_group(n, stream), data<G>(op.grad), data<const T>(op.w),
                        data<const StepState>(op.state), op.decay, n));
    });
  });
}
}  // namespace athanor::cuda
