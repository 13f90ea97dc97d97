// Rotary position embedding in place [Su et al. 2021, eq. 34], halves layout: (a, b) -> (a cos - b sin, b cos + a sin).
// Layout: x [N, heads D], any row stride. A thread takes a pack of the first half of a head, the matching pack of the
// second half, and the same columns of a few more heads of the row, so that the table is read once for all of them.
// Memory bound: x is read and written once, the table comes from the caches. Not timed on a GPU yet.
#include "cuda/kernels.h"
#include "cuda/pack.h"
#include "cuda/rotation.h"

namespace athanor::cuda {
namespace {

constexpr int kHeads = 4;  // heads per thread

template <class T>
struct Rotation {
  T* x;
  const float* cos_sin;  // [P, D]
  const int* positions;  // [N]
  int64_t stride;        // row stride of x
  float sign;            // sign of the angle: -1 in backward
  unsigned heads, half;  // half: D / 2
  unsigned groups;       // head h belongs to group h % groups
  unsigned threads;
};

template <class T, int E>
__global__ void __launch_bounds__(kFlatThreads) rope(Rotation<T> a) {
  ptx::wait_for_earlier_kernels();
  const unsigned number = first_pack<1>(), packs = a.half / E;
  if (number >= a.threads) return;
  const unsigned rest = number / packs, column = number % packs * E;
  const unsigned row = rest / a.groups, group = rest % a.groups;
  T* x = a.x + row * a.stride + column;
  Pack<T, E> first[kHeads], second[kHeads];
#pragma unroll
  for (int k = 0; k < kHeads; ++k) {
    const unsigned head = group + k * a.groups;
    if (head >= a.heads) continue;
    const T* from = x + static_cast<size_t>(head) * 2 * a.half;
    first[k] = load_pack<E>(from);
    second[k] = load_pack<E>(from + a.half);
  }
  const float* table = a.cos_sin + static_cast<int64_t>(a.positions[row]) * 2 * a.half + column;
  const Pack<float, E> cosines = load_pack<E>(table), sines = load_pack<E>(table + a.half);
#pragma unroll
  for (int k = 0; k < kHeads; ++k) {
    const unsigned head = group + k * a.groups;
    if (head >= a.heads) return;
    float u[E], v[E];
#pragma unroll
    for (int i = 0; i < E; ++i) {
      const float sine = a.sign * sines[i];
      const float2 rotated = rotate(first[k][i], second[k][i], cosines[i], sine);
      u[i] = rotated.x, v[i] = rotated.y;
    }
    T* to = x + static_cast<size_t>(head) * 2 * a.half;
    store_values(to, u);
    store_values(to + a.half, v);
  }
}
}  // namespace

void run(const Rope& op, void*, cudaStream_t stream) {
  const int64_t rows = op.x.rows(), half = op.head_dim / 2, groups = div_ceil<int64_t>(op.heads, kHeads);
  if (op.x.numel() == 0) return;
  const auto fits = [&]<class T>() {
    return in_packs<T>(half, op.x.stride()) && aligned16(op.x.data, op.cos_sin.data);
  };
  by_pack(op.x.dtype, fits, [&]<class T, int E>() {
    const int64_t threads = rows * groups * (half / E);
    const auto config = flat_launch<1>(op.kName, threads, stream);  // checks that all counts fit in 32 bits
    const Rotation<T> a{.x = data<T>(op.x),
                        .cos_sin = data<float>(op.cos_sin),
                        .positions = data<int>(op.positions),
                        .stride = op.x.stride(),
                        .sign = op.inverse ? -1.f : 1.f,
                        .heads = static_cast<unsigned>(op.heads),
                        .half = static_cast<unsigned>(half),
                        .groups = static_cast<unsigned>(groups),
                        .threads = static_cast<unsigned>(threads)};
    CUDA_CHECK(launch(rope<T, E>, config, a));
  });
}
}  // namespace athanor::cuda
