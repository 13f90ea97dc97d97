// MergeAttention of ops/attention.h. Layout: rows of y, part and lse have no gaps, so head h of query i is at index i H
// + h in each of them; a warp has one such index, and its lanes read both lse before the first lane writes the new one.
// Memory bound: y is read and written once, part read once. Not timed on a GPU yet.
#include "cuda/kernels.h"
#include "cuda/pack.h"

namespace athanor::cuda {
namespace {

constexpr int kWarps = 4;  // warps per thread block

template <class T>
struct Merge {
  float* y;
  float* lse;
  const T* part;
  const float* part_lse;
  int64_t count;  // queries times heads
  int dim;
};

template <class T, int E>
__global__ void __launch_bounds__(kWarps * 32) merge(Merge<T> a) {
  ptx::wait_for_earlier_kernels();
  const int64_t number = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (number >= a.count) return;
  const float before = a.lse[number], more = a.part_lse[number], most = fmaxf(before, more);
  __syncwarp();
  if (most == -INFINITY) return;
  const float mine = expf(before - most), others = expf(more - most), sum = mine + others;
  const float of_y = mine / sum, of_part = others / sum;
  if (lane == 0) a.lse[number] = most + logf(sum);
  float* y = a.y + number * a.dim;
  const T* part = a.part + number * a.dim;
  for (int c = lane * E; c < a.dim; c += 32 * E) {
    const Pack<float, E> old = load_pack<E>(static_cast<const float*>(y + c));
    const Pack<T, E> added = load_pack<E>(part + c);
    float values[E];
#pragma unroll
    for (int i = 0; i < E; ++i) values[i] = old[i] * of_y + added[i] * of_part;
    store_values(y + c, values);
  }
}
}  // namespace

void run(const MergeAttention& op, void*, cudaStream_t stream) {
  if (op.y.numel() == 0) return;
  const int64_t heads = op.lse.numel(), dim = op.y.cols() / op.lse.cols();
  const auto fits = [&]<class T>() { return in_packs<T>(dim) && aligned16(op.y.data, op.part.data); };
  by_pack(op.part.dtype, fits, [&]<class T, int E>() {
    const LaunchConfig config{dim3(grid_size(div_ceil<int64_t>(heads, kWarps))), dim3(kWarps * 32), 0, stream};
    const Merge<T> a{.y = data<float>(op.y),
                     .lse = data<float>(op.lse),
                     .part = data<T>(op.part),
                     .part_lse = data<float>(op.part_lse),
                     .count = heads,
                     .dim = static_cast<int>(dim)};
    CUDA_CHECK(launch(merge<T, E>, config, a));
  });
}
}  // namespace athanor::cuda
