// Biases of experts and the clamped activation of GPT-OSS: the formulas of ops/biased_experts.h. Layout: packs of 16
// bytes where rows are aligned; gradients of a bias have one thread per element, which adds the expert's rows in order;
// those of router weights one warp per row. Memory bound. Unverified: no GPU has run them.
#include "cuda/kernels.h"
#include "cuda/pack.h"
#include "cuda/ptx/ptx.h"
#include "cuda/reduce.h"

namespace athanor::cuda {
namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps;

__device__ __forceinline__ int lane_number() { return static_cast<int>(threadIdx.x) % 32; }
__device__ __forceinline__ int warp_number() {
  return static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
}
LaunchConfig warps(int64_t count, cudaStream_t stream) {
  return {dim3(grid_size(div_ceil<int64_t>(count, kWarps))), dim3(kThreads), 0, stream};
}

struct ExpertRows {
  const int* offsets;
  const float* weights;  // null: all 1
  const int* slots;
  int experts;
  __device__ __forceinline__ float weight(int64_t row) const { return weights ? weights[slots[row]] : 1.f; }
  // The expert that has the row; `experts` if none has it.
  __device__ __forceinline__ int expert_of(int64_t row) const {
    int low = 0, high = experts;  // the first expert that ends after the row
    while (low < high) {
      const int middle = (low + high) / 2;
      if (offsets[middle + 1] > row) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  }
};
ExpertRows rows_of(const Tensor& offsets, const Tensor& weights, const Tensor& slots) {
  return {data<int>(offsets), data<float>(weights), data<int>(slots), narrow<int>(offsets.numel() - 1)};
}

template <class T, int E>
__global__ void __launch_bounds__(kFlatThreads)
    add_bias(T* x, const T* bias, ExpertRows rows, unsigned row_packs, unsigned packs) {
  ptx::wait_for_earlier_kernels();
  const unsigned at = first_pack<1>();
  if (at >= packs) return;
  const unsigned row = at / row_packs, column = at % row_packs;
  const int expert = rows.expert_of(row);
  if (expert == rows.experts) return;
  const float weight = rows.weight(row);
  const Pack<T, E> before = load_pack<E>(static_cast<const T*>(x) + static_cast<size_t>(at) * E);
  const Pack<T, E> b = load_pack<E>(bias + (static_cast<size_t>(expert) * row_packs + column) * E);
  float sum[E];
#pragma unroll
  for (int i = 0; i < E; ++i) sum[i] = before[i] + b[i] * weight;
  store_values(x + static_cast<size_t>(at) * E, sum);
}

// A block has kThreads columns of one expert.
template <class T, class G>
__global__ void __launch_bounds__(kThreads)
    bias_gradient(G* dbias, const T* dx, ExpertRows rows, int columns, int blocks) {
  ptx::wait_for_earlier_kernels();
  const int expert = static_cast<int>(blockIdx.x) / blocks;
  const int column = static_cast<int>(blockIdx.x) % blocks * kThreads + static_cast<int>(threadIdx.x);
  if (column >= columns) return;
  float sum = 0;
  for (int64_t r = rows.offsets[expert]; r < rows.offsets[expert + 1]; ++r)
    sum += to_float(dx[r * columns + column]) * rows.weight(r);
  G* out = dbias + static_cast<int64_t>(expert) * columns + column;
  *out = from_float<G>(to_float(*out) + sum);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    weight_gradient(float* dweights, const T* dx, const T* bias, ExpertRows rows, int columns, int count) {
  ptx::wait_for_earlier_kernels();
  const int row = warp_number();
  if (row >= count) return;
  const int expert = rows.expert_of(row);
  if (expert == rows.experts) return;
  float sum = 0;
  for (int c = lane_number(); c < columns; c += 32)
    sum += to_float(dx[static_cast<int64_t>(row) * columns + c]) *
           to_float(bias[static_cast<int64_t>(expert) * columns + c]);
  sum = warp_reduce(sum, Plus{});
  if (lane_number() == 0) dweights[rows.slots[row]] += sum;
}

template <class T>
struct ClampedRows {
  T *dgu, *y;
  const T *dy, *gu;
  float* dweights;
  const float* weights;
  const int* slots;
  unsigned row_packs, rows;
  float limit;
};

struct ClampedGlu {
  float y, gate, up;  // y, and its derivatives
  __device__ __forceinline__ ClampedGlu(float gate_in, float up_in, float limit) {
    const float g = gate_in > limit ? limit : gate_in;
    const float u = up_in > limit ? limit : up_in < -limit ? -limit : up_in;
    const float x = ClampedGluFwd::kSteepness * g, s = __fdividef(1.f, 1.f + __expf(-x));
    y = (u + 1.f) * (g * s);
    gate = gate_in > limit ? 0.f : (u + 1.f) * s * (1.f + x * (1.f - s));
    up = up_in == u ? g * s : 0.f;
  }
};

template <class T, int E>
__global__ void __launch_bounds__(kFlatThreads) clamped_forward(ClampedRows<T> a) {
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
  for (int i = 0; i < E; ++i) y[i] = ClampedGlu(g[i], u[i], a.limit).y * weight;
  store_values(a.y + static_cast<size_t>(at) * E, y);
}

// Each pack is read before it is written, since outputs may alias inputs.
template <class T, int E>
__global__ void __launch_bounds__(kThreads) clamped_backward(ClampedRows<T> a) {
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
      const ClampedGlu f(g[i], u[i], a.limit);
      sum += d[i] * f.y;
      y[i] = f.y * weight;
      dgate[i] = d[i] * weight * f.gate, dup[i] = d[i] * weight * f.up;
    }
    store_values(a.y + at, y);
    store_values(a.dgu + gate, dgate);
    store_values(a.dgu + gate + half, dup);
  }
  sum = warp_reduce(sum, Plus{});
  if (lane_number() == 0) a.dweights[slot] = sum;
}

}  // namespace

void run(const AddExpertBias& op, void*, cudaStream_t stream) {
  const int64_t n = op.x.numel(), columns = op.x.cols();
  if (n == 0) return;
  const auto fits = [&]<class T>() { return in_packs<T>(columns) && aligned16(op.x.data, op.bias.data); };
  by_pack(op.x.dtype, fits, [&]<class T, int E>() {
    CUDA_CHECK(launch(add_bias<T, E>, flat_launch<1>(op.kName, n / E, stream), data<T>(op.x), data<T>(op.bias),
                      rows_of(op.offsets, op.weights, op.slots), static_cast<unsigned>(columns / E),
                      static_cast<unsigned>(n / E)));
  });
}

void run(const AddExpertBiasBwd& op, void*, cudaStream_t stream) {
  const int rows = narrow<int>(op.dx.rows()), columns = narrow<int>(op.dx.cols());
  if (op.dx.numel() == 0) return;
  const ExpertRows experts = rows_of(op.offsets, op.weights, op.slots);
  by_type(op.dx.dtype, [&]<class T>() {
    if (op.dbias) {
      const int blocks = div_ceil(columns, kThreads);
      const LaunchConfig config{dim3(grid_size(int64_t{blocks} * op.experts())), dim3(kThreads), 0, stream};
      if (op.dbias.dtype == DType::f32) {
        CUDA_CHECK(
            launch(bias_gradient<T, float>, config, data<float>(op.dbias), data<T>(op.dx), experts, columns, blocks));
      } else {
        CUDA_CHECK(
            launch(bias_gradient<T, bf16>, config, data<bf16>(op.dbias), data<T>(op.dx), experts, columns, blocks));
      }
    }
    if (op.weights)
      CUDA_CHECK(launch(weight_gradient<T>, warps(rows, stream), data<float>(op.dweights), data<T>(op.dx),
                        data<T>(op.bias), experts, columns, rows));
  });
}

void run(const ClampedGluFwd& op, void*, cudaStream_t stream) {
  const int64_t n = op.y.numel(), columns = op.y.cols();
  if (n == 0) return;
  const auto fits = [&]<class T>() { return in_packs<T>(columns) && aligned16(op.y.data, op.gu.data); };
  by_pack(op.y.dtype, fits, [&]<class T, int E>() {
    const ClampedRows<T> a{nullptr,
                           data<T>(op.y),
                           nullptr,
                           data<T>(op.gu),
                           nullptr,
                           data<float>(op.weights),
                           data<int>(op.slots),
                           static_cast<unsigned>(columns / E),
                           static_cast<unsigned>(op.y.rows()),
                           op.limit};
    CUDA_CHECK(launch(clamped_forward<T, E>, flat_launch<1>(op.kName, n / E, stream), a));
  });
}

void run(const ClampedGluBwd& op, void*, cudaStream_t stream) {
  const int64_t columns = op.dy.cols();
  if (op.dy.rows() == 0) return;
  const auto fits = [&]<class T>() {
    return in_packs<T>(columns) && aligned16(op.dgu.data, op.dy.data, op.gu.data, op.y.data);
  };
  by_pack(op.dy.dtype, fits, [&]<class T, int E>() {
    const ClampedRows<T> a{data<T>(op.dgu),
                           data<T>(op.y),
                           data<T>(op.dy),
                           data<T>(op.gu),
                           data<float>(op.dweights),
                           data<float>(op.weights),
                           data<int>(op.slots),
                           static_cast<unsigned>(columns / E),
                           static_cast<unsigned>(op.dy.rows()),
                           op.limit};
    CUDA_CHECK(launch(clamped_backward<T, E>, warps(op.dy.rows(), stream), a));
  });
}
}  // namespace athanor::cuda
