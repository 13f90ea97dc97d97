// Columns scaled by magnitude / norm, and their gradients: the ops of ops/dora.h.
// Layout: a block has 32 columns of 64 rows forward, and 32 columns of all rows backward: each warp adds every eighth
// row, and shared memory combines the warps. Deterministic, without atomics. Memory bound. Not timed on a GPU yet.
#include "cuda/host_tools.h"
#include "cuda/kernels.h"
#include "cuda/vectors.h"

namespace athanor::cuda {
namespace {

constexpr int kLanes = 32, kWarps = 8, kRowsOfBlock = 64;

struct Factors {
  const void* magnitude;  // null: 1
  DType type;
  const double* squares;
};

template <class M>
__device__ __forceinline__ float element_of(const void* p, int64_t i) {
  return to_float(static_cast<const M*>(p)[i]);
}
__device__ __forceinline__ float element_of(const void* p, DType type, int64_t i) {
  if (type == DType::f32) return element_of<float>(p, i);
  return type == DType::bf16 ? element_of<bf16>(p, i) : element_of<fp16>(p, i);
}
__device__ __forceinline__ float factor_of(const Factors& f, int64_t column) {
  if (!f.magnitude) return 1.f;
  const auto m = static_cast<double>(element_of(f.magnitude, f.type, column));
  return static_cast<float>(m / sqrt(f.squares[column]));
}

template <class T>
struct Matrix {
  T* p;
  int64_t stride;
  __device__ __forceinline__ T& at(int64_t row, int64_t column) const { return p[row * stride + column]; }
};

template <class T>
__global__ void __launch_bounds__(kLanes* kWarps)
    scale_by_magnitude(Matrix<T> y, Matrix<const T> x, Factors f, const void* bias, DType bias_type, int64_t rows,
                       int64_t columns, bool accumulate) {
  ptx::wait_for_earlier_kernels();
  const int64_t column = int64_t{blockIdx.x} * kLanes + static_cast<int>(threadIdx.x);
  if (column >= columns) return;
  const float factor = factor_of(f, column), added = bias ? element_of(bias, bias_type, column) : 0.f;
  const int64_t first = int64_t{blockIdx.y} * kRowsOfBlock;
  const int64_t end = first + kRowsOfBlock < rows ? first + kRowsOfBlock : rows;
  for (int64_t row = first + static_cast<int>(threadIdx.y); row < end; row += kWarps) {
    const float sum = __fadd_rn(__fmul_rn(to_float(x.at(row, column)), factor), added);
    y.at(row, column) = from_float<T>(accumulate ? to_float(y.at(row, column)) + sum : sum);
  }
}

template <class T>
__global__ void __launch_bounds__(kLanes* kWarps)
    scale_by_magnitude_bwd(Matrix<T> dx, void* dm, DType dm_type, Matrix<const T> dy, Matrix<const T> x, Factors f,
                           int64_t rows, int64_t columns) {
  ptx::wait_for_earlier_kernels();
  SHARED(double, sums, [kWarps][kLanes]);
  const int lane = static_cast<int>(threadIdx.x), warp = static_cast<int>(threadIdx.y);
  const int64_t column = int64_t{blockIdx.x} * kLanes + lane;
  double sum = 0;
  if (column < columns) {
    const float factor = factor_of(f, column);
    for (int64_t row = warp; row < rows; row += kWarps) {
      const float g = to_float(dy.at(row, column));
      sum += static_cast<double>(g) * static_cast<double>(to_float(x.at(row, column)));
      dx.at(row, column) = from_float<T>(__fmul_rn(g, factor));
    }
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || column >= columns) return;
  for (int w = 1; w < kWarps; ++w) sum += sums[w][lane];
  sum /= sqrt(f.squares[column]);
  if (dm_type == DType::f32) {
    auto* out = static_cast<float*>(dm) + column;
    *out = static_cast<float>(static_cast<double>(*out) + sum);
  } else {
    auto* out = static_cast<bf16*>(dm) + column;
    *out = from_float<bf16>(static_cast<float>(static_cast<double>(to_float(*out)) + sum));
  }
}

template <class T>
Matrix<T> matrix(const Tensor& t) {
  return {data<T>(t), t.stride()};
}
}  // namespace

void run(const ScaleByMagnitude& op, void*, cudaStream_t stream) {
  if (op.y.numel() == 0) return;
  const int64_t rows = op.y.rows(), columns = op.y.cols();
  const dim3 grid(grid_size(div_ceil<int64_t>(columns, kLanes)), grid_size(div_ceil<int64_t>(rows, kRowsOfBlock)));
  const Factors f{op.magnitude.data, op.magnitude.dtype, data<const double>(op.squares)};
  by_type(op.y.dtype, [&]<class T>() {
    CUDA_CHECK(launch(scale_by_magnitude<T>, {grid, dim3(kLanes, kWarps), 0, stream}, matrix<T>(op.y),
                      matrix<const T>(op.x), f, static_cast<const void*>(op.bias.data), op.bias.dtype, rows, columns,
                      op.accumulate));
  });
}

void run(const ScaleByMagnitudeBwd& op, void*, cudaStream_t stream) {
  if (op.dy.numel() == 0) return;
  const dim3 grid(grid_size(div_ceil<int64_t>(op.dy.cols(), kLanes)));
  const Factors f{op.magnitude.data, op.magnitude.dtype, data<const double>(op.squares)};
  by_type(op.dy.dtype, [&]<class T>() {
    CUDA_CHECK(launch(scale_by_magnitude_bwd<T>, {grid, dim3(kLanes, kWarps), 0, stream}, matrix<T>(op.dx), op.dm.data,
                      op.dm.dtype, matrix<const T>(op.dy), matrix<const T>(op.x), f, op.dy.rows(), op.dy.cols()));
  });
}
}  // namespace athanor::cuda
