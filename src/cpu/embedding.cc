// Embedding look-up and its gradient; row moves by index. Every index is checked before anything is read or written.
#include "cpu/chunks.h"
#include "cpu/cpu_ops.h"
#include "cpu/simd.h"

#include <cstring>

namespace athanor {
namespace {

// The indices of an op, each known to be in [0, limit).
const int32_t* checked_indices(const char* op, const char* name, const Tensor& t, int64_t limit) {
  const int32_t* index = flat<int32_t>(t);
  const int64_t n = t.numel();
  for (int64_t i = 0; i < n; ++i)
    if (index[i] < 0 || index[i] >= limit)
      throw Error(cat(op, ": ", name, "[", i, "] = ", index[i], " is outside the table of ", limit, " rows"));
  return index;
}

template <class T>
ATHANOR_CLONES void add_rows(T* y, const T* a, const T* b, int64_t n) {
#pragma omp simd
  for (int64_t c = 0; c < n; ++c) y[c] = from_float<T>(to_float(a[c]) + to_float(b[c]));
}

template <class T>
ATHANOR_INLINE void accumulate(float* sum, const T* x, int64_t n) {
#pragma omp simd
  for (int64_t c = 0; c < n; ++c) sum[c] += to_float(x[c]);
}

// Columns [begin, end) of the gradients, all rows in order.
template <class T>
ATHANOR_CLONES void embedding_bwd_columns(const EmbeddingBwd& op, const T* dy, float* dwte, float* dwpe,
                                          const int32_t* tokens, const int32_t* positions, int64_t begin, int64_t end) {
  const int64_t rows = op.dy.shape.dim[0], cols = op.dy.shape.dim[1];
  for (int64_t i = 0; i < rows; ++i) {
    const T* d = dy + i * cols + begin;
    accumulate(dwte + tokens[i] * cols + begin, d, end - begin);
    if (dwpe) accumulate(dwpe + positions[i] * cols + begin, d, end - begin);
  }
}

}  // namespace

void CpuOps::run(const EmbeddingFwd& op, void*) {
  const int64_t cols = op.y.cols();
  const int32_t* tokens = checked_indices(op.kName, "tokens", op.tokens, op.wte.rows());
  const int32_t* positions = op.wpe ? checked_indices(op.kName, "positions", op.positions, op.wpe.rows()) : nullptr;
  by_float(op.y.dtype, [&]<class T>() {
    T* y = flat<T>(op.y);
    const T *wte = flat<T>(op.wte), *wpe = op.wpe ? flat<T>(op.wpe) : nullptr;
    pool_.parallel_ranges(op.y.rows(), row_grain(cols), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const T* token = wte + tokens[i] * cols;
        if (wpe)
          add_rows(y + i * cols, token, wpe + positions[i] * cols, cols);
        else
          std::memcpy(y + i * cols, token, size_t(cols) * sizeof(T));
      }
    });
  });
}

size_t CpuOps::scratch(const EmbeddingBwd&) const { return 0; }
void CpuOps::run(const EmbeddingBwd& op, void*) {
  constexpr int64_t kColumns = 64;
  const int32_t* tokens = checked_indices(op.kName, "tokens", op.tokens, op.dwte.rows());
  const int32_t* positions = op.dwpe ? checked_indices(op.kName, "positions", op.positions, op.dwpe.rows()) : nullptr;
  float *dwte = flat<float>(op.dwte), *dwpe = op.dwpe ? flat<float>(op.dwpe) : nullptr;
  by_float(op.dy.dtype, [&]<class T>() {
    const T* dy = flat<T>(op.dy);
    pool_.parallel_ranges(op.dy.cols(), kColumns, [&](int64_t begin, int64_t end) {
      embedding_bwd_columns(op, dy, dwte, dwpe, tokens, positions, begin, end);
    });
  });
}

void CpuOps::run(const GatherRows& op, void*) {
  const int32_t* rows = checked_indices(op.kName, "rows", op.rows, op.x.rows());
  const size_t bytes = size_t(op.x.cols()) * size_of(op.x.dtype);
  const int64_t y_stride = op.y.stride(), x_stride = op.x.stride();
  pool_.parallel_ranges(op.y.rows(), row_grain(op.x.cols()), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) std::memcpy(op.y.at(i * y_stride), op.x.at(rows[i] * x_stride), bytes);
  });
}

void CpuOps::run(const ScatterRows& op, void*) {
  const int32_t* rows = checked_indices(op.kName, "rows", op.rows, op.y.rows());
  const size_t bytes = size_t(op.x.cols()) * size_of(op.x.dtype);
  const int64_t y_stride = op.y.stride(), x_stride = op.x.stride();
  pool_.parallel_ranges(op.x.rows(), row_grain(op.x.cols()), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) std::memcpy(op.y.at(rows[i] * y_stride), op.x.at(i * x_stride), bytes);
  });
}

}  // namespace athanor
