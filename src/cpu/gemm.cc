// GEMM and column sums on the thread pool; chooses the implementation of each GEMM.
#include <algorithm>

#include "cpu/cpu_ops.h"
#include "cpu/gemm_blocked.h"
#include "cpu/gemm_small.h"
#include "cpu/simd.h"

namespace athanor {

namespace {

// GEMM with K = 0: d becomes the bias or 0, or keeps its values with accumulate.
void empty_gemm(const Gemm& op) {
  if (op.accumulate) return;
  by_float(op.d.dtype, [&]<class T>() {
    for (int64_t i = 0; i < op.m(); ++i)
      for (int64_t j = 0; j < op.n(); ++j) {
        float value = 0;
        if (op.bias) by_float(op.bias.dtype, [&]<class B>() { value = to_float(op.bias.as<B>()[j]); });
        op.d.as<T>()[i * op.d.stride() + j] = from_float<T>(value);
      }
  });
}

}  // namespace

size_t CpuOps::scratch(const Gemm& op) const {
  if (op.epilogue != Epilogue::none) {
    size_t most = 0;
    in_parts(op, [&](const auto& part) { most = std::max(most, scratch(part)); });
    return most;
  }
  if (op.d.numel() == 0 || op.k() == 0) return 0;
  return gemm_is_small(op) ? gemm_small_scratch(op) : gemm_blocked_scratch(op, kernels(), pool_.size());
}

void CpuOps::run(const Gemm& op, void* scratch) {
  if (op.epilogue != Epilogue::none) return in_parts(op, [&](const auto& part) { run(part, scratch); });
  if (op.d.numel() == 0) return;
  if (op.k() == 0) return empty_gemm(op);
  if (gemm_is_small(op)) return gemm_small(op, kernels(), pool_, scratch);
  gemm_blocked(op, kernels(), pool_, scratch);
}

namespace {

constexpr int64_t kSumColumns = 256, kSumRows = 256;  // columns and rows of one chunk of a column sum

// sums[0, cols) = sum over rows of x[row, 0 .. cols), in four interleaved partial sums per column, added at the end.
template <class T>
ATHANOR_CLONES void sum_columns(float* sums, const T* x, int64_t stride, int64_t rows, int64_t cols) {
  float chain[4][kSumColumns] = {};
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4) {
    const T* row = x + r * stride;
#pragma omp simd
    for (int64_t c = 0; c < cols; ++c) {
      chain[0][c] += to_float(row[c]);
      chain[1][c] += to_float(row[stride + c]);
      chain[2][c] += to_float(row[2 * stride + c]);
      chain[3][c] += to_float(row[3 * stride + c]);
    }
  }
  for (; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c) chain[r % 4][c] += to_float(x[r * stride + c]);
#pragma omp simd
  for (int64_t c = 0; c < cols; ++c) sums[c] = (chain[0][c] + chain[1][c]) + (chain[2][c] + chain[3][c]);
}

}  // namespace

// Scratch: one row of partial sums [C] per block of rows.
size_t CpuOps::scratch(const ColumnSum& op) const {
  return size_t(div_ceil(op.x.rows(), kSumRows) * op.x.cols()) * sizeof(float);
}

void CpuOps::run(const ColumnSum& op, void* scratch) {
  const int64_t rows = op.x.rows(), cols = op.x.cols();
  const int64_t row_blocks = div_ceil(rows, kSumRows), col_blocks = div_ceil(cols, kSumColumns);
  float* partial = static_cast<float*>(scratch);  // [row_blocks, C]
  by_float(op.x.dtype, [&]<class T>() {
    const T* x = op.x.as<T>();
    pool_.parallel_for(row_blocks * col_blocks, [&](int64_t chunk) {
      const int64_t row = chunk / col_blocks * kSumRows, col = chunk % col_blocks * kSumColumns;
      sum_columns(partial + chunk / col_blocks * cols + col, x + row * cols + col, cols, std::min(kSumRows, rows - row),
                  std::min(kSumColumns, cols - col));
    });
  });
  by_float(op.out.dtype, [&]<class T>() {
    T* out = op.out.as<T>();
    pool_.parallel_ranges(cols, kSumColumns, [&](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) {
        float sum = 0;
        for (int64_t b = 0; b < row_blocks; ++b) sum += partial[b * cols + c];
        out[c] = from_float<T>(to_float(out[c]) + sum);
      }
    });
  });
}

}  // namespace athanor
