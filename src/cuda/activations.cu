// GELU, SiLU, ReLU and ReLU^2 with a gate or without, sums scaled by parameters, and gated sums, forward and backward:
// the formulas of ops/activation.h and gated_sum.h. Plain kernels with one element per thread. The backward of a scaled
// sum has one tile per block, that of a gated sum one warp per group of a row; a second launch adds their two sums in
// order. Memory bound. Unverified: no GPU has run them.
#include "cuda/activation.h"
#include "cuda/flat.h"
#include "cuda/kernels.h"
#include "cuda/pack.h"
#include "cuda/quantize/amax.h"
#include "cuda/reduce.h"

namespace athanor::cuda {
namespace {

constexpr int kScaledSumChunks = 2;
static_assert(kScaledSumThreads == kTileThreads);

// ---- device helpers

struct Point {
  float value, slope;
};
template <Activation F>
__device__ __forceinline__ Point activate(float x) {
  if constexpr (F == Activation::gelu) {
    constexpr float kTwiceInner = 1.5957691216057308f, kCubic = 0.044715f;  // same constants as in cuda/mlp.cu
    const float s = sigmoid(kTwiceInner * x * (1.f + kCubic * x * x));
    const float bounded = fminf(fmaxf(x, -64.f), 64.f);
    return {x * s, s + s * (1.f - s) * kTwiceInner * bounded * (1.f + 3.f * kCubic * bounded * bounded)};
  } else if constexpr (F == Activation::gelu_erf) {
    const float below = 0.5f * erfcf(-0.70710678f * x);
    return {x * below, below + x * 0.39894228f * expf(-0.5f * x * x)};  // slope: the density times x is added
  } else if constexpr (F == Activation::silu) {
    const float s = sigmoid(x);
    return {x * s, s * (1.f + x * (1.f - s))};
  } else if constexpr (F == Activation::relu) {
    return {x < 0.f ? 0.f : x, x > 0.f ? 1.f : 0.f};
  } else {
    const float p = x < 0.f ? 0.f : x;
    return {p * p, 2.f * p};
  }
}

__device__ __forceinline__ float scalar(const Weights& w) {
  float value[1] = {1.f};
  if (w.data != nullptr) load_weights<1>(value, w, 0);
  return value[0];
}

// ---- kernels

template <class T, Activation F, bool Gated, bool L>
__global__ void __launch_bounds__(kFlatThreads)
    activation_forward(T* y, const T* x, int64_t n, int64_t columns, uint32_t* amax) {
  ptx::wait_for_earlier_kernels();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kFlatThreads + static_cast<int>(threadIdx.x);
  Amax<L> running;
  if (i < n) {
    const int64_t gate = Gated ? i + i / columns * columns : i;
    float result[1] = {activate<F>(to_float(x[gate])).value};
    if constexpr (Gated) result[0] *= to_float(x[gate + columns]);
    y[i] = from_float<T>(result[0]);
    running.add(result);
  }
  running.template raise<T>(amax);
}

template <class T, Activation F, bool Gated, bool L>
__global__ void __launch_bounds__(kFlatThreads)
    activation_backward(T* dx, const T* dy, const T* x, int64_t n, int64_t columns, uint32_t* amax) {
  ptx::wait_for_earlier_kernels();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kFlatThreads + static_cast<int>(threadIdx.x);
  Amax<L> running;
  if (i < n) {
    const int64_t gate = Gated ? i + i / columns * columns : i;
    const Point p = activate<F>(to_float(x[gate]));
    const float d = to_float(dy[i]);
    float result[Gated ? 2 : 1] = {d * p.slope};
    if constexpr (Gated) {
      result[0] *= to_float(x[gate + columns]);
      result[1] = d * p.value;
      dx[gate + columns] = from_float<T>(result[1]);
    }
    dx[gate] = from_float<T>(result[0]);
    running.add(result);
  }
  running.template raise<T>(amax);
}

template <class T>
__global__ void __launch_bounds__(kTileThreads)
    scaled_sum(T* y, const T* x, const T* z, Weights a, Weights b, Flat flat) {
  ptx::wait_for_earlier_kernels();
  const float of_x = scalar(a), of_z = scalar(b);
  on_tile<kVector<T>, kScaledSumChunks>(flat, blockIdx.x, [&](auto tile) {
    float v[kScaledSumChunks][kVector<T>], w[kScaledSumChunks][kVector<T>];
    tile.load(v, x);
    tile.load(w, z);
#pragma unroll
    for (int c = 0; c < kScaledSumChunks; ++c) {
#pragma unroll
      for (int i = 0; i < kVector<T>; ++i) v[c][i] = of_x * v[c][i] + of_z * w[c][i];
    }
    tile.store(y, v);
  });
}

// sums [2, tiles]: the sum of dy x and the sum of dy z over each tile.
template <class T>
__global__ void __launch_bounds__(kTileThreads) scaled_sum_backward(double* sums, T* dx, T* dz, const T* dy, const T* x,
                                                                    const T* z, Weights a, Weights b, Flat flat) {
  ptx::wait_for_earlier_kernels();
  SHARED(double, smem, [32]);
  const float of_x = scalar(a), of_z = scalar(b);
  double da = 0, db = 0;
  on_tile<kScaledSumElements, 1>(flat, blockIdx.x, [&](auto tile) {
    float d[1][kScaledSumElements], u[1][kScaledSumElements], v[1][kScaledSumElements], w[1][kScaledSumElements];
    tile.load(d, dy);
    tile.load(u, x);
    tile.load(v, z);
    tile.load(w, dz);
#pragma unroll
    for (int i = 0; i < kScaledSumElements; ++i) {
      da += static_cast<double>(d[0][i]) * static_cast<double>(u[0][i]);
      db += static_cast<double>(d[0][i]) * static_cast<double>(v[0][i]);
      w[0][i] += of_z * d[0][i];
      d[0][i] *= of_x;
    }
    tile.store(dz, w);
    tile.store(dx, d);
  });
  da = block_reduce(da, smem, Plus{});
  db = block_reduce(db, smem, Plus{});
  if (threadIdx.x == 0) sums[blockIdx.x] = da, sums[gridDim.x + blockIdx.x] = db;
}

// A matrix whose rows may be strided; null data: absent.
template <class T>
struct Rows {
  T* data;
  int64_t stride;
  __device__ __forceinline__ T* at(int64_t row, int64_t column) const { return data + row * stride + column; }
};

// Groups of columns that share a gate, and the factor that multiplies all gates.
struct Groups {
  int64_t count, width;  // width: columns of a group
  float factor;
};
template <class T>
__device__ __forceinline__ double sigmoid_of(const Rows<T>& gate, int64_t row, int64_t group) {
  return gate.data == nullptr ? 1. : 1. / (1. + exp(-static_cast<double>(to_float(*gate.at(row, group)))));
}

template <class T>
__global__ void __launch_bounds__(kFlatThreads)
    gated_sum(Rows<T> y, Rows<const T> x, Rows<const T> z, Rows<const T> gate, Weights a, Weights b, Groups groups,
              int64_t n) {
  ptx::wait_for_earlier_kernels();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kFlatThreads + static_cast<int>(threadIdx.x);
  if (i >= n) return;
  const int64_t columns = groups.count * groups.width, row = i / columns, column = i % columns;
  float sum = 0.f;
  if (x.data != nullptr) sum = scalar(a) * to_float(*x.at(row, column));
  if (z.data != nullptr) {
    const float s = gate.data == nullptr ? 1.f : sigmoid(to_float(*gate.at(row, column / groups.width)));
    sum += scalar(b) * groups.factor * s * to_float(*z.at(row, column));
  }
  *y.at(row, column) = from_float<T>(sum);
}

template <class T>
struct GatedSumBackward {
  Rows<T> dx, dz, dgate;
  Rows<const T> dy, x, z, gate;
  Weights a, b;
  Groups groups;
  int64_t rows;
};
// One warp per group of a row. sums [2, blocks]: the sum of dy x and the sum of factor s dy z over each block.
template <class T>
__global__ void __launch_bounds__(kGatedSumWarps * 32) gated_sum_backward(double* sums, GatedSumBackward<T> p) {
  ptx::wait_for_earlier_kernels();
  SHARED(double, smem, [32]);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kGatedSumWarps + warp;
  double of_x = 0, of_z = 0;
  if (at < p.rows * p.groups.count) {
    const int64_t row = at / p.groups.count, group = at % p.groups.count, first = group * p.groups.width;
    const double s = sigmoid_of(p.gate, row, group), b = static_cast<double>(scalar(p.b) * p.groups.factor) * s;
    const float a = scalar(p.a), of_dy = static_cast<float>(b);
    for (int64_t i = lane; i < p.groups.width; i += 32) {
      const float d = to_float(*p.dy.at(row, first + i));
      if (p.x.data != nullptr) of_x += static_cast<double>(d) * static_cast<double>(to_float(*p.x.at(row, first + i)));
      if (p.z.data != nullptr) of_z += static_cast<double>(d) * static_cast<double>(to_float(*p.z.at(row, first + i)));
      if (p.dz.data != nullptr) {
        T* dz = p.dz.at(row, first + i);
        *dz = from_float<T>(to_float(*dz) + of_dy * d);
      }
      if (p.dx.data != nullptr) *p.dx.at(row, first + i) = from_float<T>(a * d);
    }
    const double sum = warp_reduce(of_z, Plus{});
    if (p.dgate.data != nullptr && lane == 0)
      *p.dgate.at(row, group) = from_float<T>(static_cast<float>(b * (1. - s) * sum));
    of_z *= static_cast<double>(p.groups.factor) * s;
  }
  of_x = block_reduce(of_x, smem, Plus{});
  of_z = block_reduce(of_z, smem, Plus{});
  if (threadIdx.x == 0) sums[blockIdx.x] = of_x, sums[gridDim.x + blockIdx.x] = of_z;
}

// Block 0 adds the first row of sums [2, tiles] to da, block 1 the second to db.
template <class G>
__global__ void __launch_bounds__(kTileThreads) add_tiles(G* da, G* db, const double* sums, int64_t tiles) {
  ptx::wait_for_earlier_kernels();
  SHARED(double, smem, [32]);
  G* out = blockIdx.x == 0 ? da : db;
  double sum = 0;
  for (int64_t i = static_cast<int>(threadIdx.x); i < tiles; i += kTileThreads) sum += sums[blockIdx.x * tiles + i];
  sum = block_reduce(sum, smem, Plus{});
  if (threadIdx.x == 0 && out != nullptr)
    *out = from_float<G>(static_cast<float>(static_cast<double>(to_float(*out)) + sum));
}

// ---- launchers

LaunchConfig element_per_thread(int64_t n, cudaStream_t stream) {
  return {dim3(grid_size(div_ceil<int64_t>(n, kFlatThreads))), dim3(kFlatThreads), 0, stream};
}
Weights weights(const Tensor& t) { return {t.data, t.dtype}; }
template <class T>
Rows<T> rows_of(const Tensor& t) {
  if (!t) return {nullptr, 0};
  return {data<std::remove_const_t<T>>(t), t.stride()};
}

// da += the first row of sums [2, count], db the second; either may be absent.
void add_sums(const Tensor& da, const Tensor& db, const double* sums, int64_t count, cudaStream_t stream) {
  if (!da && !db) return;
  const LaunchConfig two{dim3(2), dim3(kTileThreads), 0, stream};
  by_type(da ? da.dtype : db.dtype,
          [&]<class G>() { CUDA_CHECK(launch(add_tiles<G>, two, data<G>(da), data<G>(db), sums, count)); });
}
}  // namespace

void run(const ActivationFwd& op, void*, cudaStream_t stream) {
  const int64_t n = op.y.numel();
  uint32_t* amax = zeroed(op.amax, stream);
  if (n == 0) return;
  by_type(op.x.dtype, [&]<class T>() {
    by_activation(op.f, [&]<Activation F>() {
      by_wanted(amax, [&]<bool L>() {
        const auto kernel = op.gated() ? activation_forward<T, F, true, L> : activation_forward<T, F, false, L>;
        CUDA_CHECK(launch(kernel, element_per_thread(n, stream), data<T>(op.y), data<T>(op.x), n, op.y.cols(), amax));
      });
    });
  });
}

void run(const ActivationBwd& op, void*, cudaStream_t stream) {
  const int64_t n = op.dy.numel();
  uint32_t* amax = zeroed(op.amax, stream);
  if (n == 0) return;
  by_type(op.x.dtype, [&]<class T>() {
    by_activation(op.f, [&]<Activation F>() {
      by_wanted(amax, [&]<bool L>() {
        const auto kernel = op.gated() ? activation_backward<T, F, true, L> : activation_backward<T, F, false, L>;
        CUDA_CHECK(launch(kernel, element_per_thread(n, stream), data<T>(op.dx), data<T>(op.dy), data<T>(op.x), n,
                          op.dy.cols(), amax));
      });
    });
  });
}

void run(const ScaledSum& op, void*, cudaStream_t stream) {
  if (op.x.numel() == 0) return;
  by_type(op.x.dtype, [&]<class T>() {
    const Flat shape = flat(op.x, data<T>(op.y), data<T>(op.x), data<T>(op.z));
    const LaunchConfig config = tiles<kVector<T>, kScaledSumChunks>(shape, stream);
    CUDA_CHECK(launch(scaled_sum<T>, config, data<T>(op.y), data<T>(op.x), data<T>(op.z), weights(op.a), weights(op.b),
                      shape));
  });
}

void run(const ScaledSumBwd& op, void* scratch, cudaStream_t stream) {
  const int64_t n = op.dy.numel();
  if (n == 0) return;
  auto* sums = static_cast<double*>(scratch);
  by_type(op.dy.dtype, [&]<class T>() {
    const Flat shape = flat(op.dy, data<T>(op.dx), data<T>(op.dz), data<T>(op.dy), data<T>(op.x), data<T>(op.z));
    const LaunchConfig config = tiles<kScaledSumElements, 1>(shape, stream);
    CUDA_CHECK(launch(scaled_sum_backward<T>, config, sums, data<T>(op.dx), data<T>(op.dz), data<T>(op.dy),
                      data<T>(op.x), data<T>(op.z), weights(op.a), weights(op.b), shape));
  });
  add_sums(op.da, op.db, sums, scaled_sum_tiles(n), stream);
}

void run(const GatedSum& op, void*, cudaStream_t stream) {
  const int64_t n = op.y.numel();
  if (n == 0) return;
  const Groups groups{op.groups(), op.y.cols() / op.groups(), op.factor};
  by_type(op.y.dtype, [&]<class T>() {
    CUDA_CHECK(launch(gated_sum<T>, element_per_thread(n, stream), rows_of<T>(op.y), rows_of<const T>(op.x),
                      rows_of<const T>(op.z), rows_of<const T>(op.gate), weights(op.a), weights(op.b), groups, n));
  });
}

void run(const GatedSumBwd& op, void* scratch, cudaStream_t stream) {
  if (op.dy.numel() == 0) return;
  const int64_t blocks = gated_sum_blocks(op.dy.rows(), op.groups());
  auto* sums = static_cast<double*>(scratch);
  by_type(op.dy.dtype, [&]<class T>() {
    const GatedSumBackward<T> p{.dx = rows_of<T>(op.dx),
                                .dz = rows_of<T>(op.dz),
                                .dgate = rows_of<T>(op.dgate),
                                .dy = rows_of<const T>(op.dy),
                                .x = rows_of<const T>(op.x),
                                .z = rows_of<const T>(op.z),
                                .gate = rows_of<const T>(op.gate),
                                .a = weights(op.a),
                                .b = weights(op.b),
                                .groups = {op.groups(), op.dy.cols() / op.groups(), op.factor},
                                .rows = op.dy.rows()};
    const LaunchConfig config{dim3(grid_size(blocks)), dim3(kGatedSumWarps * 32), 0, stream};
    CUDA_CHECK(launch(gated_sum_backward<T>, config, sums, p));
  });
  add_sums(op.da, op.db, sums, blocks, stream);
}
}  // namespace athanor::cuda
