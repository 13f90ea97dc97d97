// Muon's elementwise kernels: division of a matrix by its norm, sums of two matrices, and normalization of outputs
// (NorMuon).
// Layout: row-major matrices, rows may be strided; a block has a piece of one row. Memory bound: NormalizeMatrix reads
// its matrix twice, from L2 if it fits. Deterministic: one block sums each row, another adds the rows' sums in order.
// Not timed on a GPU yet.
#include "cuda/host_tools.h"
#include "cuda/kernels.h"
#include "cuda/reduce.h"
#include "cuda/vectors.h"

namespace athanor::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kElements = 4;  // elements per thread
constexpr int kPiece = kThreads * kElements;

// Rows of a matrix.
template <class T>
struct Rows {
  T* data;
  int64_t stride;
};
template <class T>
Rows<T> rows(const Tensor& t) {
  return {data<T>(t), t ? t.stride() : 0};
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    combine(Rows<T> y, Rows<const T> a, Rows<const T> b, float alpha, float beta, int columns, bool whole) {
  ptx::wait_for_earlier_kernels();
  const int64_t row = blockIdx.x;
  const int column = static_cast<int>(blockIdx.y) * kPiece + static_cast<int>(threadIdx.x) * kElements;
  if (column >= columns) return;
  const bool vector = whole && column + kElements <= columns;
  float x[kElements], z[kElements] = {};
  load_chunk(x, a.data + row * a.stride, column, columns, vector);
  if (b.data) load_chunk(z, b.data + row * b.stride, column, columns, vector);
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    x[i] = __fmul_rn(alpha, x[i]);
    if (b.data) x[i] = __fadd_rn(x[i], __fmul_rn(beta, z[i]));
  }
  store_chunk(y.data + row * y.stride, x, column, columns, vector);
}

// sums[row] = sum of squares of a row.
template <class T>
__global__ void __launch_bounds__(kThreads) square_rows(double* sums, Rows<const T> x, int columns, bool whole) {
  ptx::wait_for_earlier_kernels();
  SHARED(double, smem, [32]);
  const T* row = x.data + blockIdx.x * x.stride;
  double sum = 0;
  for (int column = static_cast<int>(threadIdx.x) * kElements; column < columns; column += kPiece) {
    float v[kElements];
    load_chunk(v, row, column, columns, whole && column + kElements <= columns);
#pragma unroll
    for (int i = 0; i < kElements; ++i) sum += static_cast<double>(v[i]) * static_cast<double>(v[i]);
  }
  const double total = block_reduce(sum, smem, Plus{});
  if (threadIdx.x == 0) sums[blockIdx.x] = total;
}

// sums[rows] = 1 / (margin * norm + eps), by which the matrix is multiplied.
__global__ void __launch_bounds__(kThreads) inverse_norm(double* sums, int64_t rows, double margin, double eps) {
  ptx::wait_for_earlier_kernels();
  SHARED(double, smem, [32]);
  double sum = 0;
  for (int64_t r = threadIdx.x; r < rows; r += kThreads) sum += sums[r];
  const double total = block_reduce(sum, smem, Plus{});
  if (threadIdx.x == 0) sums[rows] = 1 / (margin * sqrt(total) + eps);
}

template <class To, class From>
__global__ void __launch_bounds__(kThreads)
    scale_rows(To* y, Rows<const From> x, const double* factor, int columns, bool whole) {
  ptx::wait_for_earlier_kernels();
  const int64_t row = blockIdx.x;
  const int column = static_cast<int>(blockIdx.y) * kPiece + static_cast<int>(threadIdx.x) * kElements;
  if (column >= columns) return;
  const bool vector = whole && column + kElements <= columns;
  const auto by = static_cast<float>(*factor);
  float v[kElements];
  load_chunk(v, x.data + row * x.stride, column, columns, vector);
#pragma unroll
  for (int i = 0; i < kElements; ++i) v[i] = __fmul_rn(v[i], by);
  store_chunk(y + row * columns, v, column, columns, vector);
}

// sums[column] = sum of squares of a column. Lanes of a warp have adjacent columns; each warp of a block adds every
// kWarps-th row.
constexpr int kLanes = 32, kWarps = kThreads / kLanes;
template <class T>
__global__ void __launch_bounds__(kThreads) square_columns(double* sums, const T* x, int64_t rows, int columns) {
  ptx::wait_for_earlier_kernels();
  SHARED(double, smem, [kThreads]);
  const int lane = static_cast<int>(threadIdx.x) % kLanes, warp = static_cast<int>(threadIdx.x) / kLanes;
  const int column = static_cast<int>(blockIdx.x) * kLanes + lane;
  double sum = 0;
  for (int64_t row = warp; column < columns && row < rows; row += kWarps) {
    const auto v = static_cast<double>(to_float(x[row * columns + column]));
    sum += v * v;
  }
  smem[threadIdx.x] = sum;
  __syncthreads();
  if (warp != 0 || column >= columns) return;
  for (int k = 1; k < kWarps; ++k) sum += smem[k * kLanes + lane];
  sums[column] = sum;
}

// Updates v as NormalizeNeurons does, and computes one factor per output, by which its weights are multiplied.
struct NeuronRule {
  const StepState* state;
  int64_t outputs;
  double inputs, beta, scale, eps;
};
__global__ void __launch_bounds__(kThreads)
    neuron_factors(float* factors, float* v, const double* squares, const NeuronRule op) {
  ptx::wait_for_earlier_kernels();
  SHARED(double, smem, [32]);
  const bool skip = op.state->skip;
  double before = 0, after = 0;
  for (int64_t o = threadIdx.x; o < op.outputs; o += kThreads) {
    if (!skip) v[o] = static_cast<float>(op.beta * static_cast<double>(v[o]) + (1 - op.beta) * squares[o] / op.inputs);
    const double divisor = sqrt(static_cast<double>(v[o])) + op.eps;
    before += squares[o];
    after += squares[o] / (divisor * divisor);
  }
  before = block_reduce(before, smem, Plus{});
  after = block_reduce(after, smem, Plus{});
  const double all = op.scale * sqrt(before) / (sqrt(after) + op.eps);
  for (int64_t o = threadIdx.x; o < op.outputs; o += kThreads)
    factors[o] = skip ? 0.f : static_cast<float>(all / (sqrt(static_cast<double>(v[o])) + op.eps));
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    scale_neurons(T* x, const float* factors, int columns, bool by_column, bool whole) {
  ptx::wait_for_earlier_kernels();
  const int64_t row = blockIdx.x;
  const int column = static_cast<int>(blockIdx.y) * kPiece + static_cast<int>(threadIdx.x) * kElements;
  if (column >= columns) return;
  const bool vector = whole && column + kElements <= columns;
  T* here = x + row * columns;
  float v[kElements];
  load_chunk(v, here, column, columns, vector);
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    const int at = column + i < columns ? column + i : columns - 1;
    const float by = factors[by_column ? at : row];
    v[i] = by == 0.f ? 0.f : __fmul_rn(v[i], by);
  }
  store_chunk(here, v, column, columns, vector);
}

LaunchConfig pieces(const Tensor& t, cudaStream_t stream) {
  return {dim3(grid_size(t.rows()), grid_size(div_ceil<int64_t>(t.cols(), kPiece))), dim3(kThreads), 0, stream};
}
}  // namespace

void run(const NormalizeMatrix& op, void* scratch, cudaStream_t stream) {
  if (op.x.numel() == 0) return;
  const int columns = checked_columns(op.kName, op.x);
  auto* sums = static_cast<double*>(scratch);
  by_type(op.x.dtype, [&]<class From>() {
    const Rows<const From> x = rows<const From>(op.x);
    const LaunchConfig one_each{dim3(grid_size(op.x.rows())), dim3(kThreads), 0, stream};
    CUDA_CHECK(launch(square_rows<From>, one_each, sums, x, columns, rows_are_vectors(x.stride, x.data)));
    CUDA_CHECK(launch(inverse_norm, {dim3(1), dim3(kThreads), 0, stream}, sums, op.x.rows(), op.margin, op.eps));
    by_type(op.y.dtype, [&]<class To>() {
      const bool whole = rows_are_vectors(x.stride, x.data) && rows_are_vectors(columns, data<To>(op.y));
      CUDA_CHECK(launch(scale_rows<To, From>, pieces(op.x, stream), data<To>(op.y), x,
                        static_cast<const double*>(sums + op.x.rows()), columns, whole));
    });
  });
}

void run(const NormalizeNeurons& op, void* scratch, cudaStream_t stream) {
  if (op.x.numel() == 0) return;
  const int columns = checked_columns(op.kName, op.x);
  auto* squares = static_cast<double*>(scratch);
  auto* factors = reinterpret_cast<float*>(squares + op.outputs());
  const NeuronRule rule{.state = data<StepState>(op.state),
                        .outputs = op.outputs(),
                        .inputs = static_cast<double>(op.inputs()),
                        .beta = op.beta,
                        .scale = op.scale,
                        .eps = op.eps};
  by_type(op.x.dtype, [&]<class T>() {
    T* x = data<T>(op.x);
    const bool whole = rows_are_vectors(columns, x);
    if (op.columns) {
      const LaunchConfig groups{dim3(grid_size(div_ceil(columns, kLanes))), dim3(kThreads), 0, stream};
      CUDA_CHECK(launch(square_columns<T>, groups, squares, static_cast<const T*>(x), op.x.rows(), columns));
    } else {
      const LaunchConfig one_each{dim3(grid_size(op.x.rows())), dim3(kThreads), 0, stream};
      CUDA_CHECK(launch(square_rows<T>, one_each, squares, rows<const T>(op.x), columns, whole));
    }
    CUDA_CHECK(launch(neuron_factors, {dim3(1), dim3(kThreads), 0, stream}, factors, data<float>(op.v),
                      static_cast<const double*>(squares), rule));
    CUDA_CHECK(launch(scale_neurons<T>, pieces(op.x, stream), x, static_cast<const float*>(factors), columns,
                      op.columns, whole));
  });
}

void run(const Combine& op, void*, cudaStream_t stream) {
  if (op.y.numel() == 0) return;
  const int columns = checked_columns(op.kName, op.y);
  by_type(op.y.dtype, [&]<class T>() {
    const Rows<T> y = rows<T>(op.y);
    const Rows<const T> a = rows<const T>(op.a), b = rows<const T>(op.b);
    const bool whole =
        rows_are_vectors(y.stride, y.data) && rows_are_vectors(a.stride, a.data) && rows_are_vectors(b.stride, b.data);
    CUDA_CHECK(launch(combine<T>, pieces(op.y, stream), y, a, b, op.alpha, op.beta, columns, whole));
  });
}
}  // namespace athanor::cuda
