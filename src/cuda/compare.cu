// Distances between results. One block per 64 rows adds squares in double and in a fixed order. Used only in
// autotuning.
#include "cuda/compare.h"

#include <algorithm>
#include <cmath>

#include "cuda/host_tools.h"
#include "cuda/reduce.h"

namespace athanor::cuda {
namespace {

constexpr int kRows = 64, kThreads = 256;

struct Matrix {
  int64_t rows, columns, stride, expected_stride;
};
struct Squares {
  double apart, expected;  // sums of (x - expected)^2, and of expected^2
};

template <class T>
__global__ void __launch_bounds__(kThreads) add_squares(Squares* sums, const T* x, const T* expected, Matrix m) {
  ptx::wait_for_earlier_kernels();
  SHARED(double, smem, [32]);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kRows;
  Squares own = {};
  for (int64_t row = first; row < first + kRows && row < m.rows; ++row) {
    for (int64_t column = threadIdx.x; column < m.columns; column += kThreads) {
      const float want = to_float(expected[row * m.expected_stride + column]);
      const double is = static_cast<double>(want),
                   apart = static_cast<double>(to_float(x[row * m.stride + column])) - is;
      own.apart += apart * apart;
      own.expected += is * is;
    }
  }
  const Squares all = {block_reduce(own.apart, smem, Plus{}), block_reduce(own.expected, smem, Plus{})};
  if (threadIdx.x == 0) sums[blockIdx.x] = all;
}

Matrix matrix_of(const Tensor& x, const Tensor& expected) {
  if (x.shape.rank < 2) return {.rows = 1, .columns = x.numel(), .stride = 0, .expected_stride = 0};
  return {.rows = x.rows(), .columns = x.cols(), .stride = x.stride(), .expected_stride = expected.stride()};
}

size_t bytes_with_gaps(const Tensor& t) {
  const int64_t elements = t.shape.rank < 2 ? t.numel() : (t.rows() - 1) * t.stride() + t.cols();
  return static_cast<size_t>(elements) * size_of(t.dtype);
}

}  // namespace

double largest_distance(const Tensor& x, const Tensor& expected, cudaStream_t stream) {
  CHECK(x.dtype == expected.dtype && x.shape == expected.shape, "results of ", x.shape, " and of ", expected.shape);
  if (x.numel() == 0) return 0;
  const Matrix m = matrix_of(x, expected);
  const int64_t blocks = div_ceil(m.rows, int64_t{kRows});
  std::vector<Squares> sums(static_cast<size_t>(blocks));
  const DeviceMemory smem(sums.size() * sizeof(Squares));
  by_type(x.dtype, [&]<class T>() {
    const LaunchConfig config{dim3(grid_size(blocks)), dim3(kThreads), 0, stream};
    auto* out = reinterpret_cast<Squares*>(smem.data());
    CUDA_CHECK(launch(add_squares<T>, config, out, data<T>(x), data<T>(expected), m));
  });
  CUDA_CHECK(cudaMemcpyAsync(sums.data(), smem.data(), sums.size() * sizeof(Squares), cudaMemcpyDeviceToHost, stream));
  CUDA_CHECK(cudaStreamSynchronize(stream));
  double most = 0;
  for (const Squares& s : sums) {
    if (s.apart == 0) continue;
    const double distance = std::sqrt(s.apart / s.expected);
    if (std::isnan(distance)) return distance;
    most = std::max(most, distance);
  }
  return most;
}

WrittenCopies::WrittenCopies(const std::vector<Tensor>& tensors, cudaStream_t stream) {
  for (const Tensor& t : tensors) {
    const DeviceMemory& memory = memory_.emplace_back(bytes_with_gaps(t));
    copies_.push_back(t);
    copies_.back().data = memory.data();
    CUDA_CHECK(cudaMemcpyAsync(memory.data(), t.data, bytes_with_gaps(t), cudaMemcpyDeviceToDevice, stream));
  }
}

void WrittenCopies::restore(const std::vector<Tensor>& tensors, cudaStream_t stream) const {
  for (size_t i = 0; i < tensors.size(); ++i)
    CUDA_CHECK(cudaMemcpyAsync(tensors[i].data, copies_[i].data, bytes_with_gaps(tensors[i]), cudaMemcpyDeviceToDevice,
                               stream));
}

// All bits set are a NaN of every float type.
void fill_with_nan(const std::vector<Tensor>& tensors, cudaStream_t stream) {
  for (const Tensor& t : tensors) CUDA_CHECK(cudaMemsetAsync(t.data, 0xff, bytes_with_gaps(t), stream));
}

}  // namespace athanor::cuda
