// Sums of squares of each output, and scaling of each output.
#include <cmath>

#include "cpu/cpu_ops.h"
#include "cpu/update.h"
#include "ops/output_scaling.h"

namespace athanor {
namespace {

// sums[c] += squares of column c of a [rows, cols] array, row after row.
ATHANOR_CLONES void add_squares(double* sums, const float* x, int64_t rows, int64_t cols) {
  for (int64_t r = 0; r < rows; ++r)
#pragma omp simd
    for (int64_t c = 0; c < cols; ++c) sums[c] += double(x[r * cols + c]) * double(x[r * cols + c]);
}

// Sum of squares of one output; partial sums are added in order.
double row_squares(const float* x, int64_t n) {
  constexpr int64_t kLanes = 64;
  double lanes[kLanes] = {}, sum = 0;
  add_squares(lanes, x, n / kLanes, kLanes);
  add_squares(lanes, x + n / kLanes * kLanes, 1, n % kLanes);
  for (const double lane : lanes) sum += lane;
  return sum;
}

// Calls fn(row, first column, end column, index of the first element in the range) for the elements of the range in
// rows [begin, end); the range has n elements.
template <class Fn>
void for_rows(const OutputRange& range, int64_t n, int64_t begin, int64_t end, const Fn& fn) {
  for (int64_t row = begin; row < end; ++row) {
    const int64_t from = std::max<int64_t>(0, range.first - row * range.cols);
    const int64_t to = std::min(range.cols, range.first + n - row * range.cols);
    if (from < to) fn(row, from, to, row * range.cols + from - range.first);
  }
}

// Multiplies by one factor, or by one per element.
struct Times {
  template <int L>
  static ATHANOR_INLINE void run(float* x, const float* factors, int64_t n, bool one) {
    if (one)
      simd::for_columns<L, float>(n, [&](auto at) ATHANOR_INLINE_LAMBDA { at.store(x, at.load(x) * *factors); });
    else
      simd::for_columns<L, float>(n,
                                  [&](auto at) ATHANOR_INLINE_LAMBDA { at.store(x, at.load(x) * at.load(factors)); });
  }
};

}  // namespace

void CpuOps::run(const OutputSquares& op, void*) {
  for (const OutputSquares::Part& p : op.parts) {
    const OutputRange& range = p.range;
    const int64_t n = p.x.numel(), first = range.first / range.cols,
                  rows = div_ceil(range.first + n, range.cols) - first;
    const float* x = flat<float>(p.x);
    double* sums = flat<double>(p.sums);
    if (range.columns)
      pool_.parallel_ranges(range.cols, row_grain(rows), [&](int64_t begin, int64_t end) {
        for_rows(range, n, first, first + rows, [&](int64_t, int64_t from, int64_t to, int64_t at) {
          const int64_t mine = std::max(from, begin), stop = std::min(to, end);
          if (mine < stop) add_squares(sums + mine, x + at + mine - from, 1, stop - mine);
        });
      });
    else
      pool_.parallel_ranges(rows, row_grain(range.cols), [&](int64_t begin, int64_t end) {
        for_rows(range, n, first + begin, first + end, [&](int64_t row, int64_t from, int64_t to, int64_t at) {
          sums[row] += row_squares(x + at, to - from);
        });
      });
  }
}

void CpuOps::run(const ScaleOutputs& op, void*) {
  for (const ScaleOutputs::Part& p : op.parts) {
    const OutputRange& range = p.range;
    const int64_t n = p.x.numel(), first = range.first / range.cols,
                  rows = div_ceil(range.first + n, range.cols) - first;
    float* x = flat<float>(p.x);
    const float* factors = flat<float>(p.factors);
    pool_.parallel_ranges(rows, row_grain(range.cols), [&](int64_t begin, int64_t end) {
      for_rows(range, n, first + begin, first + end, [&](int64_t row, int64_t from, int64_t to, int64_t at) {
        simd::dispatch<Times>(x + at, factors + (range.columns ? from : row), to - from, !range.columns);
      });
    });
  }
}

}  // namespace athanor
