// Dropout and stochastic depth by counter-based random numbers: the ops of ops/dropout.h.
// Dropout: flat buffers, one block per tile (flat.h). Bound by the arithmetic of the random numbers. Not timed on a GPU
// yet.
// Stochastic depth: one block per row. Memory bound. No GPU has run it.
#include "cuda/dropout.h"

#include "cuda/flat.h"

namespace athanor::cuda {
namespace {

struct Dropped {
  const StepState* state;
  const int64_t* first;  // number of the first row
  uint64_t seed, stream;
  int64_t columns;
  float p, scale;
};

template <class T>
__global__ void __launch_bounds__(kTileThreads) dropout(T* y, const T* x, Dropped a, Flat flat) {
  ptx::wait_for_earlier_kernels();
  constexpr int kElements = kVector<T>;
  const uint64_t stream = Dropout::stream_at(a.stream, *a.state);
  const uint64_t first = static_cast<uint64_t>(*a.first) * static_cast<uint64_t>(a.columns);
  on_tile<kElements, 1>(flat, blockIdx.x, [&](auto tile) {
    float v[1][kElements];
    tile.load(v, x);
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      const uint64_t element = first + static_cast<uint64_t>(tile.at(0) + i);
      v[0][i] = random_uniform(a.seed, stream, element) >= a.p ? v[0][i] * a.scale : 0.f;
    }
    tile.store(y, v);
  });
}

constexpr int kPathThreads = 128;

// Reads only the scalar fields of `op`, none of its tensors.
template <class T>
__global__ void __launch_bounds__(kPathThreads) drop_path(T* y, const T* x, const T* residual, const StepState* state,
                                                          const int64_t* first, int columns, DropPath op) {
  ptx::wait_for_earlier_kernels();
  const int64_t row = blockIdx.x;
  const uint64_t stream = Dropout::stream_at(op.stream, *state);
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

void run(const Dropout& op, void*, cudaStream_t stream) {
  if (op.y.numel() == 0) return;
  by_type(op.y.dtype, [&]<class T>() {
    const Flat shape = flat(op.y, data<T>(op.y), data<T>(op.x));
    const Dropped a{.state = static_cast<const StepState*>(op.state.data),
                    .first = data<int64_t>(op.first),
                    .seed = op.seed,
                    .stream = op.stream,
                    .columns = op.x.cols(),
                    .p = op.p,
                    .scale = 1 / (1 - op.p)};
    CUDA_CHECK(launch(dropout<T>, tiles<kVector<T>, 1>(shape, stream), data<T>(op.y), data<T>(op.x), a, shape));
  });
}
}  // namespace athanor::cuda
