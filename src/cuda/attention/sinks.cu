// AttentionSinks and its backward of ops/attention_sinks.h. Layout: rows of y and lse have no gaps, so head h of query
// i is at index i H + h in both. Forward: a warp has one such index. Backward: a block has one head, a warp every 32nd
// of its queries, and the sums of the warps are added in order. Memory bound. No GPU has run it.
#include "cuda/kernels.h"
#include "cuda/pack.h"

namespace athanor::cuda {
namespace {

constexpr int kWarps = 4;           // per block, forward
constexpr int kBackwardWarps = 32;  // per block, backward

template <class T, class S>
struct Sinks {
  T* y;
  float* lse;
  const S* sinks;
  int64_t count;  // queries times heads
  int heads, dim;
};

template <class T, class S, int E>
__global__ void __launch_bounds__(kWarps * 32) attend_sinks(Sinks<T, S> a) {
  ptx::wait_for_earlier_kernels();
  const int64_t number = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (number >= a.count) return;
  const float before = a.lse[number], sink = to_float(a.sinks[number % a.heads]), most = fmaxf(before, sink);
  __syncwarp();
  const float keys = expf(before - most), sum = keys + expf(sink - most), factor = keys / sum;
  if (lane == 0) a.lse[number] = most + logf(sum);
  T* y = a.y + number * a.dim;
  for (int c = lane * E; c < a.dim; c += 32 * E) {
    const Pack<T, E> old = load_pack<E>(static_cast<const T*>(y + c));
    float values[E];
#pragma unroll
    for (int i = 0; i < E; ++i) values[i] = to_float(old[i]) * factor;
    store_values(y + c, values);
  }
}

template <class T, class S, class G>
struct SinkGradients {
  G* dsinks;
  const T *dy, *y;
  const float* lse;
  const S* sinks;
  int64_t rows;
  int heads, dim;
};

template <class T, class S, class G>
__global__ void __launch_bounds__(kBackwardWarps * 32) differentiate_sinks(SinkGradients<T, S, G> a) {
  ptx::wait_for_earlier_kernels();
  SHARED(double, sums, [kBackwardWarps]);
  const int head = static_cast<int>(blockIdx.x), lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const float sink = to_float(a.sinks[head]);
  double all = 0;
  for (int64_t i = warp; i < a.rows; i += kBackwardWarps) {
    const int64_t number = i * a.heads + head;
    float dot = 0;
    for (int c = lane; c < a.dim; c += 32)
      dot = fmaf(to_float(a.dy[number * a.dim + c]), to_float(a.y[number * a.dim + c]), dot);
    for (int other = 16; other > 0; other /= 2) dot += __shfl_xor_sync(~0u, dot, other);
    all += static_cast<double>(expf(sink - a.lse[number]) * dot);
  }
  if (lane == 0) sums[warp] = all;
  __syncthreads();
  if (threadIdx.x != 0) return;
  double total = 0;
  for (int w = 0; w < kBackwardWarps; ++w) total += sums[w];
  a.dsinks[head] = from_float<G>(static_cast<float>(static_cast<double>(to_float(a.dsinks[head])) - total));
}
}  // namespace

void run(const AttentionSinks& op, void*, cudaStream_t stream) {
  if (op.y.numel() == 0) return;
  const int64_t heads = op.lse.numel(), dim = op.y.cols() / op.lse.cols();
  const auto fits = [&]<class T>() { return in_packs<T>(dim) && aligned16(op.y.data); };
  by_pack(op.y.dtype, fits, [&]<class T, int E>() {
    by_type(op.sinks.dtype, [&]<class S>() {
      const LaunchConfig config{dim3(grid_size(div_ceil<int64_t>(heads, kWarps))), dim3(kWarps * 32), 0, stream};
      const Sinks<T, S> a{.y = data<T>(op.y),
                          .lse = data<float>(op.lse),
                          .sinks = data<S>(op.sinks),
                          .count = heads,
                          .heads = static_cast<int>(op.lse.cols()),
                          .dim = static_cast<int>(dim)};
      CUDA_CHECK(launch(attend_sinks<T, S, E>, config, a));
    });
  });
}

void run(const AttentionSinksBwd& op, void*, cudaStream_t stream) {
  if (op.y.numel() == 0) return;
  const int64_t heads = op.lse.cols();
  by_type(op.y.dtype, [&]<class T>() {
    by_type(op.sinks.dtype, [&]<class S>() {
      by_type(op.dsinks.dtype, [&]<class G>() {
        const SinkGradients<T, S, G> a{.dsinks = data<G>(op.dsinks),
                                       .dy = data<T>(op.dy),
                                       .y = data<T>(op.y),
                                       .lse = data<float>(op.lse),
                                       .sinks = data<S>(op.sinks),
                                       .rows = op.y.rows(),
                                       .heads = static_cast<int>(heads),
                                       .dim = static_cast<int>(op.y.cols() / heads)};
        CUDA_CHECK(
            launch(differentiate_sinks<T, S, G>, {dim3(grid_size(heads)), dim3(kBackwardWarps * 32), 0, stream}, a));
      });
    });
  });
}
}  // namespace athanor::cuda
