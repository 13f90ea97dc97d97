// GELU and SwiGLU, forward and backward.
//   GELU: y = x s(z), z = 2 sqrt(2/pi) (x + 0.044715 x^3), s(z) = 1 / (1 + exp(-z)), which is the tanh form since
//   0.5 (1 + tanh(z/2)) = s(z)  [Hendrycks & Gimpel 2016, sec. 2];  dx = dy (s + x s (1 - s) dz/dx).
//   SwiGLU: y = g s(g) u  [Shazeer 2020, eq. 5];  dg = dy u s (1 + g (1 - s)), du = dy g s.
// Layout: flat packs of 16 bytes; a thread loads everything before its first store, so outputs may alias inputs. Memory
// bound: each tensor is read or written once. Not timed on a GPU yet.
#include "cuda/activation.h"
#include "cuda/kernels.h"
#include "cuda/pack.h"
#include "cuda/quantize/amax.h"

namespace athanor::cuda {
namespace {

// ---- device helpers

constexpr float kTwiceInner = 1.5957691216057308f;  // 2 sqrt(2/pi)
constexpr float kCubic = 0.044715f;

__device__ __forceinline__ float gelu_sigmoid(float x) { return sigmoid(kTwiceInner * x * (1.f + kCubic * x * x)); }

__device__ __forceinline__ float gelu_derivative(float x) {
  const float s = gelu_sigmoid(x);
  const float bounded = fminf(fmaxf(x, -64.f), 64.f);  // s is 0 or 1 there, and the square cannot overflow
  const float slope = kTwiceInner * bounded * (1.f + 3.f * kCubic * bounded * bounded);
  return s + s * (1.f - s) * slope;
}

// ---- kernels

constexpr int kForward = 4, kBackward = 2;  // packs in flight per thread and tensor

template <class T, int E, bool L>
__global__ void __launch_bounds__(kFlatThreads) gelu_forward(T* y, const T* x, unsigned packs, uint32_t* amax) {
  ptx::wait_for_earlier_kernels();
  Pack<T, E> v[kForward];
  for_packs<kForward>(packs, [&](int k, unsigned at) { v[k] = load_pack<E>(x + static_cast<size_t>(at) * E); });
  Amax<L> running;
  for_packs<kForward>(packs, [&](int k, unsigned at) {
    float result[E];
#pragma unroll
    for (int i = 0; i < E; ++i) result[i] = v[k][i] * gelu_sigmoid(v[k][i]);
    store_values(y + static_cast<size_t>(at) * E, result);
    running.add(result);
  });
  running.template raise<T>(amax);
}

template <class T, int E, bool L>
__global__ void __launch_bounds__(kFlatThreads)
    gelu_backward(T* dx, const T* dy, const T* x, unsigned packs, uint32_t* amax) {
  ptx::wait_for_earlier_kernels();
  Pack<T, E> v[kBackward], d[kBackward];
  for_packs<kBackward>(packs, [&](int k, unsigned at) {
    v[k] = load_pack<E>(x + static_cast<size_t>(at) * E);
    d[k] = load_pack<E>(dy + static_cast<size_t>(at) * E);
  });
  Amax<L> running;
  for_packs<kBackward>(packs, [&](int k, unsigned at) {
    float result[E];
#pragma unroll
    for (int i = 0; i < E; ++i) result[i] = d[k][i] * gelu_derivative(v[k][i]);
    store_values(dx + static_cast<size_t>(at) * E, result);
    running.add(result);
  });
  running.template raise<T>(amax);
}

// Index of the gate of pack `at` of [N, F] in [N, 2F]; the up value is F elements further. row_packs: packs per row of
// y.
template <int E>
__device__ __forceinline__ size_t gate_of(unsigned at, unsigned row_packs) {
  return (static_cast<size_t>(at / row_packs) * row_packs + at) * E;
}

template <class T, int E, bool L>
__global__ void __launch_bounds__(kFlatThreads)
    swiglu_forward(T* y, const T* gu, unsigned packs, unsigned row_packs, uint32_t* amax) {
  ptx::wait_for_earlier_kernels();
  const T* up = gu + static_cast<size_t>(row_packs) * E;
  Pack<T, E> g[kBackward], u[kBackward];
  for_packs<kBackward>(packs, [&](int k, unsigned at) {
    const size_t gate = gate_of<E>(at, row_packs);
    g[k] = load_pack<E>(gu + gate);
    u[k] = load_pack<E>(up + gate);
  });
  Amax<L> running;
  for_packs<kBackward>(packs, [&](int k, unsigned at) {
    float result[E];
#pragma unroll
    for (int i = 0; i < E; ++i) result[i] = swiglu(g[k][i], u[k][i]);
    store_values(y + static_cast<size_t>(at) * E, result);
    running.add(result);
  });
  running.template raise<T>(amax);
}

// Y: also recomputes y.
template <class T, int E, bool L, bool Y>
__global__ void __launch_bounds__(kFlatThreads)
    swiglu_backward(T* dgu, T* y, const T* dy, const T* gu, unsigned packs, unsigned row_packs, uint32_t* amax) {
  ptx::wait_for_earlier_kernels();
  const size_t to_up = static_cast<size_t>(row_packs) * E;
  Pack<T, E> d[kBackward], g[kBackward], u[kBackward];
  for_packs<kBackward>(packs, [&](int k, unsigned at) {
    const size_t gate = gate_of<E>(at, row_packs);
    d[k] = load_pack<E>(dy + static_cast<size_t>(at) * E);
    g[k] = load_pack<E>(gu + gate);
    u[k] = load_pack<E>(gu + gate + to_up);
  });
  Amax<L> running;
  for_packs<kBackward>(packs, [&](int k, unsigned at) {
    if constexpr (Y) {
      float again[E];
#pragma unroll
      for (int i = 0; i < E; ++i) again[i] = swiglu(g[k][i], u[k][i]);
      store_values(y + static_cast<size_t>(at) * E, again);
    }
    float dgate[E], dup[E];
#pragma unroll
    for (int i = 0; i < E; ++i) {
      const SwigluGradient gradient = swiglu_gradient(d[k][i], g[k][i], u[k][i]);
      dgate[i] = gradient.gate, dup[i] = gradient.up;
    }
    const size_t gate = gate_of<E>(at, row_packs);
    store_values(dgu + gate, dgate);
    store_values(dgu + gate + to_up, dup);
    running.add(dgate);
    running.add(dup);
  });
  running.template raise<T>(amax);
}
}  // namespace

// ---- launchers

void run(const GeluFwd& op, void*, cudaStream_t stream) {
  const int64_t n = op.x.numel();
  uint32_t* amax = zeroed(op.amax, stream);
  if (n == 0) return;
  const auto fits = [&]<class T>() { return in_packs<T>(n) && aligned16(op.y.data, op.x.data); };
  by_pack(op.x.dtype, fits, [&]<class T, int E>() {
    const auto config = flat_launch<kForward>(op.kName, n / E, stream);
    by_wanted(amax, [&]<bool L>() {
      CUDA_CHECK(launch(gelu_forward<T, E, L>, config, data<T>(op.y), data<T>(op.x), n / E, amax));
    });
  });
}

void run(const GeluBwd& op, void*, cudaStream_t stream) {
  const int64_t n = op.x.numel();
  uint32_t* amax = zeroed(op.amax, stream);
  if (n == 0) return;
  const auto fits = [&]<class T>() { return in_packs<T>(n) && aligned16(op.dx.data, op.dy.data, op.x.data); };
  by_pack(op.x.dtype, fits, [&]<class T, int E>() {
    const auto config = flat_launch<kBackward>(op.kName, n / E, stream);
    by_wanted(amax, [&]<bool L>() {
      CUDA_CHECK(launch(gelu_backward<T, E, L>, config, data<T>(op.dx), data<T>(op.dy), data<T>(op.x), n / E, amax));
    });
  });
}

void run(const SwigluFwd& op, void*, cudaStream_t stream) {
  const int64_t n = op.y.numel(), columns = op.y.cols();
  uint32_t* amax = zeroed(op.amax, stream);
  if (n == 0) return;
  const auto fits = [&]<class T>() { return in_packs<T>(columns) && aligned16(op.y.data, op.gu.data); };
  by_pack(op.y.dtype, fits, [&]<class T, int E>() {
    const auto config = flat_launch<kBackward>(op.kName, n / E, stream);
    by_wanted(amax, [&]<bool L>() {
      CUDA_CHECK(launch(swiglu_forward<T, E, L>, config, data<T>(op.y), data<T>(op.gu), n / E, columns / E, amax));
    });
  });
}

void run(const SwigluBwd& op, void*, cudaStream_t stream) {
  const int64_t n = op.dy.numel(), columns = op.dy.cols();
  uint32_t* amax = zeroed(op.amax, stream);
  if (n == 0) return;
  const auto fits = [&]<class T>() {
    return in_packs<T>(columns) && aligned16(op.dgu.data, op.dy.data, op.gu.data, op.y.data);
  };
  by_pack(op.dy.dtype, fits, [&]<class T, int E>() {
    const auto config = flat_launch<kBackward>(op.kName, n / E, stream);
    by_wanted(amax, [&]<bool L>() {
      const auto kernel = op.y ? swiglu_backward<T, E, L, true> : swiglu_backward<T, E, L, false>;
      CUDA_CHECK(launch(kernel, config, data<T>(op.dgu), data<T>(op.y), data<T>(op.dy), data<T>(op.gu), n / E,
                        columns / E, amax));
    });
  });
}
}  // namespace athanor::cuda
