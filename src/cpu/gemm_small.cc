// b [N, K]: dot products of the few rows of a with every row of b. b [K, N]: weighted sums of rows of b, over runs of
// consecutive rows so that memory is read sequentially; the sums of the runs are added at the end.
#include "cpu/gemm_small.h"

#include <algorithm>

#include "base/int.h"
#include "cpu/simd.h"

namespace athanor {
namespace {

constexpr int64_t kFewRows = 8;             // with more rows, packing b pays off
constexpr int64_t kChunkElements = 131072;  // elements of b per chunk of work: enough to make its dispatch negligible
constexpr int64_t kMaxChunkRows = 256;
constexpr int64_t kRunColumns = 4096;  // columns of b [K, N] per chunk of work: their sums stay in L1
constexpr int64_t kSumColumns = 2048;  // columns per chunk when the sums of runs are added
constexpr int64_t kLeastRun = 192;     // minimum rows of b [K, N] per run
constexpr int64_t kMostRuns = 8;       // maximum number of runs: few enough that adding their sums costs little

bool in_place(const Gemm& op) { return op.a.dtype == DType::f32 && !op.tf32; }

Source source_of(const Gemm& op, const Tensor& t) { return {t.data, t.stride(), t.dtype, op.tf32}; }

// The rows of a as f32, converted into scratch unless they are f32.
struct Left {
  const float* x;  // [m, k]
  int64_t stride;
  Left(const Gemm& op, const Kernels& kern, void* scratch)
      : x(static_cast<const float*>(op.a.data)), stride(op.a.stride()) {
    if (in_place(op)) return;
    auto* copy = static_cast<float*>(scratch);
    kern.pack_rows(copy, op.k(), source_of(op, op.a), 0, op.m(), 0, op.k(), false);
    x = copy, stride = op.k();
  }
};

// Address of an element of a matrix, which may be past the end.
const void* address(const Tensor& t, int64_t row, int64_t col) {
  return static_cast<const std::byte*>(t.data) + (row * t.stride() + col) * int64_t(size_of(t.dtype));
}

int64_t left_floats(const Gemm& op) { return in_place(op) ? 0 : op.m() * op.k(); }

// d[:, col .. col + cols) = sums (+ bias) (+ d), rounded.
void store(const Gemm& op, float* sums, int64_t stride, int64_t col, int64_t cols) {
  for (int64_t i = 0; i < op.m(); ++i, sums += stride) {
    if (op.bias) by_float(op.bias.dtype, [&]<class B>() { add_row(sums, op.bias.as<B>() + col, cols); });
    by_float(op.d.dtype, [&]<class T>() {
      T* d = op.d.as<T>() + i * op.d.stride() + col;
      if (op.accumulate) add_row(sums, d, cols);
      store_row(d, sums, cols);
    });
  }
}

// Splits the rows of x into groups of at most kMaxFewRows, which the kernels accept.
template <class Fn>
void in_groups(int64_t m, Fn fn) {
  for (int64_t i = 0; i < m; i += kMaxFewRows) fn(i, std::min<int64_t>(kMaxFewRows, m - i) - 1);
}

// Rows of b [K, N] per run.
int64_t run_rows(const Gemm& op) { return std::max(kLeastRun, div_ceil(op.k(), 8 * kMostRuns) * 8); }

void sum_rows(const Gemm& op, const Kernels& kern, ThreadPool& pool, void* scratch) {
  const int64_t m = op.m(), n = op.n(), k = op.k(), rows = run_rows(op), runs = div_ceil(k, rows);
  const int64_t blocks = div_ceil(n, kRunColumns);
  const Left left(op, kern, scratch);
  float* partial = static_cast<float*>(scratch) + left_floats(op);  // [runs, m, n]
  pool.parallel_for(runs * blocks, [&](int64_t chunk) {
    const int64_t run = chunk / blocks, row = run * rows, col = chunk % blocks * kRunColumns;
    const int64_t next = chunk + pool.size();
    in_groups(m, [&](int64_t i, int64_t kernel) {
      kern.sums[kernel]({.x = left.x + i * left.stride + row,
                         .x_stride = left.stride,
                         .w = source_of(op, op.b),
                         .row = row,
                         .rows = std::min(rows, k - row),
                         .column = col,
                         .columns = std::min(kRunColumns, n - col),
                         .next = address(op.b, next / blocks * rows, next % blocks * kRunColumns),
                         .out = partial + (run * m + i) * n + col,
                         .out_stride = n});
    });
  });
  pool.parallel_ranges(n, kSumColumns, [&](int64_t begin, int64_t end) {
    for (int64_t run = 1; run < runs; ++run)
      for (int64_t i = 0; i < m; ++i)
        add_row(partial + i * n + begin, partial + (run * m + i) * n + begin, end - begin);
    store(op, partial + begin, n, begin, end - begin);
  });
}

void dot_rows(const Gemm& op, const Kernels& kern, ThreadPool& pool, void* scratch) {
  const int64_t m = op.m(), k = op.k();
  const Left left(op, kern, scratch);
  const int64_t rows = std::clamp<int64_t>(kChunkElements / k / 4 * 4, 4, kMaxChunkRows);
  pool.parallel_ranges(op.n(), rows, [&](int64_t begin, int64_t end) {
    float sums[kFewRows * kMaxChunkRows];
    in_groups(m, [&](int64_t i, int64_t kernel) {
      kern.dots[kernel]({.x = left.x + i * left.stride,
                         .x_stride = left.stride,
                         .w = source_of(op, op.b),
                         .row = begin,
                         .rows = end - begin,
                         .column = 0,
                         .columns = k,
                         .next = address(op.b, begin + pool.size() * rows, 0),
                         .out = sums + i * kMaxChunkRows,
                         .out_stride = kMaxChunkRows});
    });
    store(op, sums, kMaxChunkRows, begin, end - begin);
  });
}

}  // namespace

bool gemm_is_small(const Gemm& op) { return !op.ta && op.m() <= kFewRows; }

size_t gemm_small_scratch(const Gemm& op) {
  const int64_t partial = op.tb ? 0 : div_ceil(op.k(), run_rows(op)) * op.m() * op.n();
  return size_t(left_floats(op) + partial) * sizeof(float);
}

void gemm_small(const Gemm& op, const Kernels& kern, ThreadPool& pool, void* scratch) {
  op.tb ? dot_rows(op, kern, pool, scratch) : sum_rows(op, kern, pool, scratch);
}

}  // namespace athanor
