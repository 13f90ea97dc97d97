// Heads of multi-head latent attention: copies, and rotations of the channels with positions, forward and backward: the
// formulas of ops/latent_heads.h. Plain kernels with one element, or one rotated pair, per thread; a thread of the
// shared key's gradient adds a pair of all heads, in order. Memory bound. Unverified: no GPU has run them.
#include "cuda/kernels.h"
#include "cuda/pack.h"
#include "cuda/rotation.h"

namespace athanor::cuda {
namespace {

struct Angles {
  const float* cos_sin;  // [P, rope]
  const int* positions;  // [N]
};

template <class T>
struct Heads {
  T* qkv;       // [N, 3 H D]
  T* q;         // [N, H D]
  T* kv;        // [N, H (nope + value)]
  T* rope_key;  // [N, rope]
  Angles angles;
  int heads, nope, rope, value;
  bool interleaved;
  __device__ int dim() const { return nope + rope; }
};

// The pair of a head's rotated channels that has channel c of the halves layout.
struct RotatedPair {
  int first, second;  // in the inputs, from the first rotated channel on
  float cosine, sine;
};
template <class T>
__device__ __forceinline__ RotatedPair pair_of(const Heads<T>& a, int64_t row, int c) {
  const int half = a.rope / 2, i = c < half ? c : c - half;
  const float* table = a.angles.cos_sin + static_cast<int64_t>(a.angles.positions[row]) * a.rope;
  return {a.interleaved ? 2 * i : i, a.interleaved ? 2 * i + 1 : i + half, table[i], table[half + i]};
}

// One element of qkv per thread.
template <class T>
__global__ void __launch_bounds__(kFlatThreads) latent_heads(Heads<T> a, int64_t n) {
  ptx::wait_for_earlier_kernels();
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kFlatThreads + static_cast<int>(threadIdx.x);
  if (at >= n) return;
  const int width = a.heads * a.dim();
  const int64_t row = at / (3 * width);
  const int column = static_cast<int>(at % (3 * width)), part = column / width;
  const int head = column % width / a.dim(), c = column % a.dim();
  const T* q = a.q + row * width + head * a.dim();
  const T* kv = a.kv + (row * a.heads + head) * (a.nope + a.value);
  if (part == 2) {
    a.qkv[at] = c < a.value ? kv[a.nope + c] : from_float<T>(0.f);
    return;
  }
  if (c < a.nope) {
    a.qkv[at] = part == 0 ? q[c] : kv[c];
    return;
  }
  const T* from = part == 0 ? q + a.nope : a.rope_key + row * a.rope;
  const RotatedPair pair = pair_of(a, row, c - a.nope);
  const float2 rotated = rotate(to_float(from[pair.first]), to_float(from[pair.second]), pair.cosine, pair.sine);
  a.qkv[at] = from_float<T>(c - a.nope < a.rope / 2 ? rotated.x : rotated.y);
}

// The gradient of the pair before its rotation. from: the head's rotated channels, in the halves layout.
template <class T>
__device__ __forceinline__ float2 rotated_back(const T* from, int i, int half, const RotatedPair& pair) {
  return rotate(to_float(from[i]), to_float(from[i + half]), pair.cosine, -pair.sine);
}

// A thread has one of a row's elements of q without positions, of its rotated pairs of q, of its elements of kv, or of
// the pairs of rope_key, in this order. Here q, kv and rope_key are the gradients that are written.
template <class T>
__global__ void __launch_bounds__(kFlatThreads) latent_heads_backward(Heads<T> a, int64_t n) {
  ptx::wait_for_earlier_kernels();
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kFlatThreads + static_cast<int>(threadIdx.x);
  if (at >= n) return;
  const int half = a.rope / 2, width = a.heads * a.dim(), key_value = a.nope + a.value;
  const int copied = a.heads * a.nope, rotated = a.heads * half, of_kv = a.heads * key_value;
  const int per_row = copied + rotated + of_kv + half;
  const int64_t row = at / per_row;
  int i = static_cast<int>(at % per_row);
  const T *dq = a.qkv + row * 3 * width, *dk = dq + width, *dv = dk + width;
  if (i < copied) {
    const int column = i / a.nope * a.dim() + i % a.nope;
    a.q[row * width + column] = dq[column];
    return;
  }
  i -= copied;
  if (i < rotated) {
    const int head = i / half * a.dim() + a.nope, c = i % half;
    const RotatedPair pair = pair_of(a, row, c);
    const float2 back = rotated_back(dq + head, c, half, pair);
    a.q[row * width + head + pair.first] = from_float<T>(back.x);
    a.q[row * width + head + pair.second] = from_float<T>(back.y);
    return;
  }
  i -= rotated;
  if (i < of_kv) {
    const int head = i / key_value * a.dim(), c = i % key_value;
    a.kv[row * of_kv + i] = c < a.nope ? dk[head + c] : dv[head + c - a.nope];
    return;
  }
  i -= of_kv;
  const RotatedPair pair = pair_of(a, row, i);
  float2 sum = {0.f, 0.f};
  for (int head = 0; head < a.heads; ++head) {
    const float2 back = rotated_back(dk + head * a.dim() + a.nope, i, half, pair);
    sum.x += back.x, sum.y += back.y;
  }
  a.rope_key[row * a.rope + pair.first] = from_float<T>(sum.x);
  a.rope_key[row * a.rope + pair.second] = from_float<T>(sum.y);
}

template <class T>
Heads<T> heads_of(const LatentShape& s, const Tensor& qkv, const Tensor& q, const Tensor& kv, const Tensor& rope_key,
                  const Tensor& cos_sin, const Tensor& positions) {
  return {.qkv = data<T>(qkv),
          .q = data<T>(q),
          .kv = data<T>(kv),
          .rope_key = data<T>(rope_key),
          .angles = {data<float>(cos_sin), data<int>(positions)},
          .heads = narrow<int>(s.heads),
          .nope = narrow<int>(s.nope),
          .rope = narrow<int>(s.rope),
          .value = narrow<int>(s.value),
          .interleaved = s.interleaved};
}

LaunchConfig one_per_thread(int64_t n, cudaStream_t stream) {
  return {dim3(grid_size(div_ceil<int64_t>(n, kFlatThreads))), dim3(kFlatThreads), 0, stream};
}

}  // namespace

void run(const LatentHeads& op, void*, cudaStream_t stream) {
  const int64_t n = op.qkv.numel();
  if (n == 0) return;
  by_type(op.qkv.dtype, [&]<class T>() {
    const auto a = heads_of<T>(op.shape, op.qkv, op.q, op.kv, op.rope_key, op.cos_sin, op.positions);
    CUDA_CHECK(launch(latent_heads<T>, one_per_thread(n, stream), a, n));
  });
}

void run(const LatentHeadsBwd& op, void*, cudaStream_t stream) {
  const LatentShape& s = op.shape;
  const int64_t n = op.dqkv.rows() * (s.heads * (s.nope + s.rope / 2 + s.key_value()) + s.rope / 2);
  if (n == 0) return;
  by_type(op.dqkv.dtype, [&]<class T>() {
    const auto a = heads_of<T>(s, op.dqkv, op.dq, op.dkv, op.drope_key, op.cos_sin, op.positions);
    CUDA_CHECK(launch(latent_heads_backward<T>, one_per_thread(n, stream), a, n));
  });
}
}  // namespace athanor::cuda
