// Gated activations of the experts' sorted rows, times the router's weights: SwiGLU (ops/moe.h) and GPT-OSS's clamped
// one (ops/biased_experts.h). Layout: packs of 16 bytes where rows are aligned; gradients have one warp per row, since
// they sum over the row. Memory bound. Unverified: no GPU has run them.
#include "cuda/activation.h"
#include "cuda/kernels.h"
#include "cuda/pack.h"
#include "cuda/ptx/ptx.h"
#include "cuda/reduce.h"
#include "cuda/warps.h"

namespace athanor::cuda {
namespace {

struct Swiglu {
  __device__ __forceinline__ float value(float gate, float up) const { return swiglu(gate, up); }
  __device__ __forceinline__ SwigluGradient gradient(float dy, float gate, float up) const {
    return swiglu_gradient(dy, gate, up);
  }
};

struct ClampedGlu {
  float limit;
  __device__ __forceinline__ float clamped_gate(float gate) const { return gate > limit ? limit : gate; }
  __device__ __forceinline__ float clamped_up(float up) const { return up > limit ? limit : up < -limit ? -limit : up; }
  __device__ __forceinline__ float value(float gate, float up) const {
    const float g = clamped_gate(gate);
    return (clamped_up(up) + 1.f) * (g * sigmoid(ClampedGluFwd::kSteepness * g));
  }
  // Gradients are zero where clamping changed the value.
  __device__ __forceinline__ SwigluGradient gradient(float dy, float gate, float up) const {
    const float g = clamped_gate(gate), u = clamped_up(up), x = ClampedGluFwd::kSteepness * g, s = sigmoid(x);
    return {gate > limit ? 0.f : dy * ((u + 1.f) * s * (1.f + x * (1.f - s))), up == u ? dy * (g * s) : 0.f};
  }
};

template <class T, class Glu>
struct WeightedRows {
  T *dgu, *y;
  const T *dy, *gu;
  float* dweights;
  const float* weights;
  const int* slots;
  unsigned row_packs, rows;
  Glu glu;
};

template <class T, int E, class Glu>
__global__ void __launch_bounds__(kFlatThreads) weighted_forward(WeightedRows<T, Glu> a) {
  ptx::wait_for_earlier_kernels();
  const unsigned at = first_pack<1>();
  if (at >= a.rows * a.row_packs) return;
  const unsigned row = at / a.row_packs;
  const float weight = a.weights[a.slots[row]];
  const size_t gate = (static_cast<size_t>(row) * a.row_packs + at) * E;
  const Pack<T, E> g = load_pack<E>(a.gu + gate);
  const Pack<T, E> u = load_pack<E>(a.gu + gate + static_cast<size_t>(a.row_packs) * E);
  float y[E];
#pragma unroll
  for (int i = 0; i < E; ++i) y[i] = a.glu.value(g[i], u[i]) * weight;
  store_values(a.y + static_cast<size_t>(at) * E, y);
}

// Each pack is read before it is written, since outputs may alias inputs.
template <class T, int E, class Glu>
__global__ void __launch_bounds__(kThreads) weighted_backward(WeightedRows<T, Glu> a) {
  ptx::wait_for_earlier_kernels();
  const auto row = static_cast<unsigned>(warp_number());
  if (row >= a.rows) return;
  const int slot = a.slots[row];
  const float weight = a.weights[slot];
  const size_t half = static_cast<size_t>(a.row_packs) * E;
  float sum = 0;
  for (unsigned column = static_cast<unsigned>(lane_number()); column < a.row_packs; column += 32) {
    const size_t at = row * half + static_cast<size_t>(column) * E, gate = at + row * half;
    const Pack<T, E> g = load_pack<E>(a.gu + gate), u = load_pack<E>(a.gu + gate + half), d = load_pack<E>(a.dy + at);
    float y[E], dgate[E], dup[E];
#pragma unroll
    for (int i = 0; i < E; ++i) {
      const float made = a.glu.value(g[i], u[i]);
      const SwigluGradient gradient = a.glu.gradient(d[i] * weight, g[i], u[i]);
      sum += d[i] * made;
      y[i] = made * weight;
      dgate[i] = gradient.gate, dup[i] = gradient.up;
    }
    store_values(a.y + at, y);
    store_values(a.dgu + gate, dgate);
    store_values(a.dgu + gate + half, dup);
  }
  sum = warp_reduce(sum, Plus{});
  if (lane_number() == 0) a.dweights[slot] = sum;
}

template <class Glu, class Op>
void run_forward(const Op& op, Glu glu, cudaStream_t stream) {
  const int64_t n = op.y.numel(), columns = op.y.cols();
  if (n == 0) return;
  const auto fits = [&]<class T>() { return in_packs<T>(columns) && aligned16(op.y.data, op.gu.data); };
  by_pack(op.y.dtype, fits, [&]<class T, int E>() {
    const WeightedRows<T, Glu> a{nullptr,
                                 data<T>(op.y),
                                 nullptr,
                                 data<T>(op.gu),
                                 nullptr,
                                 data<float>(op.weights),
                                 data<int>(op.slots),
                                 static_cast<unsigned>(columns / E),
                                 static_cast<unsigned>(op.y.rows()),
                                 glu};
    CUDA_CHECK(launch(weighted_forward<T, E, Glu>, flat_launch<1>(op.kName, n / E, stream), a));
  });
}

template <class Glu, class Op>
void run_backward(const Op& op, Glu glu, cudaStream_t stream) {
  const int64_t columns = op.dy.cols();
  if (op.dy.rows() == 0) return;
  const auto fits = [&]<class T>() {
    return in_packs<T>(columns) && aligned16(op.dgu.data, op.dy.data, op.gu.data, op.y.data);
  };
  by_pack(op.dy.dtype, fits, [&]<class T, int E>() {
    const WeightedRows<T, Glu> a{data<T>(op.dgu),
                                 data<T>(op.y),
                                 data<T>(op.dy),
                                 data<T>(op.gu),
                                 data<float>(op.dweights),
                                 data<float>(op.weights),
                                 data<int>(op.slots),
                                 static_cast<unsigned>(columns / E),
                                 static_cast<unsigned>(op.dy.rows()),
                                 glu};
    CUDA_CHECK(launch(weighted_backward<T, E, Glu>, warps(op.dy.rows(), stream), a));
  });
}

}  // namespace

void run(const WeightedSwigluFwd& op, void*, cudaStream_t stream) { run_forward(op, Swiglu{}, stream); }
void run(const WeightedSwigluBwd& op, void*, cudaStream_t stream) { run_backward(op, Swiglu{}, stream); }
void run(const ClampedGluFwd& op, void*, cudaStream_t stream) { run_forward(op, ClampedGlu{op.limit}, stream); }
void run(const ClampedGluBwd& op, void*, cudaStream_t stream) { run_backward(op, ClampedGlu{op.limit}, stream); }
}  // namespace athanor::cuda
