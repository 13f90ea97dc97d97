// b [N, K]: dot products of the few rows of a with every row of b. b [K, N]: sums of rows of b, whole runs of rows at a
// time, so that memory is read from one end to the other; the sums of the runs are added in the end.
#include "cpu/gemm_small.h"

#include <algorithm>

#include "base/int.h"
#include "cpu/simd.h"

namespace athanor {
namespace {

constexpr int64_t kFewRows = 8;            // beyond, packing b pays
constexpr int64_t kChunkElements = 65536;  // of b per chunk of work: enough for handing it out to cost nothing
constexpr int64_t kMaxChunkRows = 128;
constexpr int64_t kRunRows = 64, kRunColumns = 2048;  // of b [K, N] per chunk of work; sums of columns stay in L1

bool in_place(const Gemm& op) { return op.a.dtype == DType::f32 && !op.tf32; }

// The rows of a as f32, converted into scratch where they are not.
struct Left {
  const float* x;  // [m, k]
  int64_t stride;
  Left(const Gemm& op, const Kernels& kern, void* scratch)
      : x(static_cast<const float*>(op.a.data)), stride(op.a.stride()) {
    if (in_place(op)) return;
    auto* copy = static_cast<float*>(scratch);
    kern.pack_rows(copy, op.k(), {op.a.data, op.a.stride(), op.a.dtype, op.tf32}, 0, op.m(), 0, op.k(), false);
    x = copy, stride = op.k();
  }
};

int64_t left_floats(const Gemm& op) { return in_place(op) ? 0 : op.m() * op.k(); }

// d[:, col .. col + cols) = sums (+ bias) (+ d), rounded.
void store(const Gemm& op, const float* sums, int64_t stride, int64_t col, int64_t cols) {
  by_float(op.d.dtype, [&]<class T>() {
    for (int64_t i = 0; i < op.m(); ++i) {
      T* d = op.d.as<T>() + i * op.d.stride() + col;
      for (int64_t j = 0; j < cols; ++j) {
        float sum = sums[i * stride + j];
        if (op.bias) by_float(op.bias.dtype, [&]<class B>() { sum += to_float(op.bias.as<B>()[col + j]); });
        if (op.accumulate) sum += to_float(d[j]);
        d[j] = from_float<T>(sum);
      }
    }
  });
}

// sums[0, cols) += sum over rows of x[row] w[row, 0 .. cols); four rows at a time share each read of the sums. Rows lie
// too far apart for the hardware to foresee, so the four rows that come next are fetched by hand.
template <class T>
ATHANOR_CLONES void add_rows(float* sums, const float* x, const T* w, int64_t stride, int64_t rows, int64_t cols) {
  constexpr int64_t kLine = 64 / int64_t(sizeof(T));  // elements of a cache line
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4) {
    const T *w0 = w + r * stride, *w1 = w0 + stride, *w2 = w1 + stride, *w3 = w2 + stride;
    const float x0 = x[r], x1 = x[r + 1], x2 = x[r + 2], x3 = x[r + 3];
    int64_t c = 0;
    for (; c + kLine <= cols; c += kLine) {
      for (const T* row : {w0, w1, w2, w3}) __builtin_prefetch(row + 4 * stride + c);
#pragma omp simd
      for (int64_t i = c; i < c + kLine; ++i)
        sums[i] += (x0 * to_float(w0[i]) + x1 * to_float(w1[i])) + (x2 * to_float(w2[i]) + x3 * to_float(w3[i]));
    }
    for (; c < cols; ++c)
      sums[c] += (x0 * to_float(w0[c]) + x1 * to_float(w1[c])) + (x2 * to_float(w2[c]) + x3 * to_float(w3[c]));
  }
  for (; r < rows; ++r)
#pragma omp simd
    for (int64_t c = 0; c < cols; ++c) sums[c] += x[r] * to_float(w[r * stride + c]);
}

void sum_rows(const Gemm& op, const Kernels& kern, ThreadPool& pool, void* scratch) {
  const int64_t m = op.m(), n = op.n(), k = op.k(), runs = div_ceil(k, kRunRows), blocks = div_ceil(n, kRunColumns);
  const Left left(op, kern, scratch);
  float* partial = static_cast<float*>(scratch) + left_floats(op);  // [runs, m, n]
  pool.parallel_for(runs * blocks, [&](int64_t chunk) {
    const int64_t run = chunk / blocks, row = run * kRunRows, rows = std::min(kRunRows, k - row);
    const int64_t col = chunk % blocks * kRunColumns, cols = std::min(kRunColumns, n - col);
    by_float(op.b.dtype, [&]<class T>() {
      for (int64_t i = 0; i < m; ++i) {
        float* sums = partial + (run * m + i) * n + col;
        std::fill_n(sums, cols, 0.0f);
        add_rows(sums, left.x + i * left.stride + row, op.b.as<T>() + row * op.b.stride() + col, op.b.stride(), rows,
                 cols);
      }
    });
  });
  for (int64_t run = 1; run < runs; ++run)
    for (int64_t i = 0; i < m * n; ++i) partial[i] += partial[run * m * n + i];
  store(op, partial, n, 0, n);
}

void dot_rows(const Gemm& op, const Kernels& kern, ThreadPool& pool, void* scratch) {
  const int64_t m = op.m(), k = op.k();
  const Left left(op, kern, scratch);
  const int64_t rows = std::clamp<int64_t>(kChunkElements / k / 4 * 4, 4, kMaxChunkRows);
  pool.parallel_ranges(op.n(), rows, [&](int64_t begin, int64_t end) {
    float sums[kFewRows * kMaxChunkRows];
    for (int64_t i = 0; i < m; i += kMaxDots)
      kern.dots[std::min<int64_t>(kMaxDots, m - i) - 1]({.x = left.x + i * left.stride,
                                                         .x_stride = left.stride,
                                                         .w = {op.b.data, op.b.stride(), op.b.dtype, op.tf32},
                                                         .row = begin,
                                                         .rows = end - begin,
                                                         .k = k,
                                                         .out = sums + i * kMaxChunkRows,
                                                         .out_stride = kMaxChunkRows});
    store(op, sums, kMaxChunkRows, begin, end - begin);
  });
}

}  // namespace

bool gemm_is_small(const Gemm& op) { return !op.ta && op.m() <= kFewRows && (op.tb || !op.tf32); }

size_t gemm_small_scratch(const Gemm& op) {
  const int64_t partial = op.tb ? 0 : div_ceil(op.k(), kRunRows) * op.m() * op.n();
  return size_t(left_floats(op) + partial) * sizeof(float);
}

void gemm_small(const Gemm& op, const Kernels& kern, ThreadPool& pool, void* scratch) {
  op.tb ? dot_rows(op, kern, pool, scratch) : sum_rows(op, kern, pool, scratch);
}

}  // namespace athanor
