// Scaling of columns by magnitude / norm, and its gradients.
#include <cmath>
#include <vector>

#include "cpu/chunks.h"
#include "cpu/cpu_ops.h"

namespace athanor {
namespace {

// The elements of a float tensor as f32.
std::vector<float> floats(const Tensor& t) {
  std::vector<float> all(size_t(t.numel()));
  by_float(t.dtype, [&]<class T>() {
    for (size_t i = 0; i < all.size(); ++i) all[i] = to_float(t.as<T>()[i]);
  });
  return all;
}

std::vector<float> factors(const Tensor& magnitude, const Tensor& squares) {
  std::vector<float> all = floats(magnitude);
  for (size_t i = 0; i < all.size(); ++i) all[i] = float(double(all[i]) / std::sqrt(squares.as<double>()[i]));
  return all;
}

}  // namespace

void CpuOps::run(const ScaleByMagnitude& op, void*) {
  const auto columns = size_t(op.y.cols());
  const std::vector<float> factor = op.magnitude ? factors(op.magnitude, op.squares) : std::vector<float>(columns, 1);
  const std::vector<float> bias = op.bias ? floats(op.bias) : std::vector<float>(columns, 0);
  by_float(op.y.dtype, [&]<class T>() {
    pool_.parallel_ranges(op.y.rows(), row_grain(op.y.cols()), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        T* y = op.y.as<T>() + r * op.y.stride();
        const T* x = op.x.as<T>() + r * op.x.stride();
        for (size_t c = 0; c < columns; ++c) {
          const float sum = to_float(x[c]) * factor[c] + bias[c];
          y[c] = from_float<T>(op.accumulate ? to_float(y[c]) + sum : sum);
        }
      }
    });
  });
}

size_t CpuOps::scratch(const ScaleByMagnitudeBwd& op) const {
  return size_t(RowBlocks(op.dy.rows()).count * op.dy.cols()) * sizeof(double);
}

void CpuOps::run(const ScaleByMagnitudeBwd& op, void* scratch) {
  const int64_t columns = op.dy.cols();
  const RowBlocks blocks(op.dy.rows());
  const std::vector<float> factor = factors(op.magnitude, op.squares);
  auto* sums = static_cast<double*>(scratch);  // [blocks, O]
  by_float(op.dy.dtype, [&]<class T>() {
    pool_.parallel_ranges(op.dy.rows(), blocks.rows_per_block, [&](int64_t begin, int64_t end) {
      double* mine = sums + begin / blocks.rows_per_block * columns;
      std::fill_n(mine, columns, 0.0);
      for (int64_t r = begin; r < end; ++r) {
        T* dx = op.dx.as<T>() + r * op.dx.stride();
        const T *dy = op.dy.as<T>() + r * op.dy.stride(), *x = op.x.as<T>() + r * op.x.stride();
        for (int64_t c = 0; c < columns; ++c) {
          const float g = to_float(dy[c]);
          mine[c] += double(g) * double(to_float(x[c]));
          dx[c] = from_float<T>(g * factor[size_t(c)]);
        }
      }
    });
  });
  by_float(op.dm.dtype, [&]<class T>() {
    for (int64_t c = 0; c < columns; ++c) {
      double sum = 0;
      for (int64_t b = 0; b < blocks.count; ++b) sum += sums[b * columns + c];
      T& dm = op.dm.as<T>()[c];
      dm = from_float<T>(float(double(to_float(dm)) + sum / std::sqrt(op.squares.as<double>()[c])));
    }
  });
}

}  // namespace athanor
