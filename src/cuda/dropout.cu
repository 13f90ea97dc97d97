// Dropout by counter-based random numbers: the op of ops/dropout.h.
// Layout: flat buffers, a block per tile (flat.h). Bound by the arithmetic of the random numbers. Not timed on a GPU yet.
#include "cuda/dropout.h"

#include "cuda/flat.h"

namespace athanor::cuda {
namespace {

struct Dropped {
  const StepState* state;
  const int64_t* first;  // row
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
}  // namespace

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
