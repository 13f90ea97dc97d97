// Dot products of a few rows of a with every row of b.
#include "cpu/gemm_small.h"

#include <algorithm>

namespace athanor {
namespace {

constexpr int64_t kFewRows = 8;            // beyond, packing b pays
constexpr int64_t kChunkElements = 16384;  // of b per chunk of work
constexpr int64_t kMaxChunkRows = 128;

bool in_place(const Gemm& op) { return op.a.dtype == DType::f32 && !op.tf32; }

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

}  // namespace

bool gemm_is_small(const Gemm& op) { return op.tb && !op.ta && op.m() <= kFewRows; }

size_t gemm_small_scratch(const Gemm& op) { return in_place(op) ? 0 : size_t(op.m() * op.k()) * sizeof(float); }

void gemm_small(const Gemm& op, const Kernels& kern, ThreadPool& pool, void* scratch) {
  const int64_t m = op.m(), k = op.k();
  const float* x = static_cast<const float*>(op.a.data);
  int64_t x_stride = op.a.stride();
  if (!in_place(op)) {
    kern.pack_rows(static_cast<float*>(scratch), k, {op.a.data, op.a.stride(), op.a.dtype, op.tf32}, 0, m, 0, k, false);
    x = static_cast<const float*>(scratch), x_stride = k;
  }
  const int64_t rows = std::clamp<int64_t>(kChunkElements / k / 4 * 4, 4, kMaxChunkRows);
  pool.parallel_ranges(op.n(), rows, [&](int64_t begin, int64_t end) {
    float sums[kFewRows * kMaxChunkRows];
    for (int64_t i = 0; i < m; i += kMaxDots)
      kern.dots[std::min<int64_t>(kMaxDots, m - i) - 1]({.x = x + i * x_stride,
                                                         .x_stride = x_stride,
                                                         .w = {op.b.data, op.b.stride(), op.b.dtype, op.tf32},
                                                         .row = begin,
                                                         .rows = end - begin,
                                                         .k = k,
                                                         .out = sums + i * kMaxChunkRows,
                                                         .out_stride = kMaxChunkRows});
    store(op, sums, kMaxChunkRows, begin, end - begin);
  });
}

}  // namespace athanor
