// Embedding look-up and its gradient; patches of images; row moves by index. Every index is checked before anything is
// read or written.
#include <algorithm>
#include <cstring>
#include <vector>

#include "cpu/chunks.h"
#include "cpu/cpu_ops.h"
#include "cpu/indices.h"
#include "cpu/vec.h"

namespace athanor {
namespace {

// Local rows of tokens in a vocabulary shard; -1 if another shard has the token.
std::vector<int32_t> rows_in_part(const char* op, const Tensor& tokens, const VocabPart& part) {
  const int32_t* token = checked_indices(op, "tokens", tokens, part.total);
  std::vector<int32_t> rows(size_t(tokens.numel()));
  std::transform(token, token + tokens.numel(), rows.begin(), [&](int32_t t) { return part.row(t); });
  return rows;
}

// Random rows defeat the hardware prefetcher, so the row needed kAhead rows later is prefetched.
constexpr int64_t kAhead = 4;
ATHANOR_INLINE void prefetch_row(const void* row, size_t bytes) {
  for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(static_cast<const char*>(row) + i, 0, 2);
}

struct AddRow {
  template <int L, class T>
  static ATHANOR_INLINE void run(T* y, const T* a, const T* b, int64_t n) {
    simd::for_columns<L, T>(n, [&](auto at) ATHANOR_INLINE_LAMBDA { at.store(y, at.load(a) + at.load(b)); });
  }
};

template <class T>
struct ScatterGrads {
  const T* dy;
  float *dwte, *dwpe;  // dwpe may be null
  const int32_t *tokens, *positions;
  const int32_t* from;  // rows of dy to use; null: all rows in order
  int64_t rows, cols;
};

// Columns [begin, end) of the gradients, all rows in order.
struct EmbeddingBackward {
  template <int L, class T>
  static ATHANOR_INLINE void run(const ScatterGrads<T>& a, int64_t begin, int64_t end) {
    const int64_t n = end - begin;
    for (int64_t i = 0; i < a.rows; ++i) {
      if (i + kAhead < a.rows) prefetch_row(a.dwte + a.tokens[i + kAhead] * a.cols + begin, size_t(n) * sizeof(float));
      const T* dy = a.dy + (a.from ? a.from[i] : i) * a.cols + begin;
      accumulate<L>(a.dwte + a.tokens[i] * a.cols + begin, dy, n);
      if (a.dwpe) accumulate<L>(a.dwpe + a.positions[i] * a.cols + begin, dy, n);
    }
  }

  template <int L, class T>
  static ATHANOR_INLINE void accumulate(float* sum, const T* x, int64_t n) {
    simd::for_columns<L, T>(n, [&](auto at) ATHANOR_INLINE_LAMBDA { at.store(sum, at.load(sum) + at.load(x)); });
  }
};

// Columns [begin, end) of a 16-bit gradient. Rows with equal index are summed in f32, in order, and rounded once.
template <class T>
struct SortedRows {
  bf16* sums;
  const T* dy;
  const int32_t *index, *order;  // order: row numbers of dy, sorted by index and then by row
  int64_t rows, cols;
};
struct SumSortedRows {
  static constexpr int64_t kStrip = 1024;
  template <int L, class T>
  static ATHANOR_INLINE void run(const SortedRows<T>& a, int64_t begin, int64_t end) {
    float sum[kStrip];
    for (int64_t first = 0, last = 0; first < a.rows; first = last) {
      const int64_t row = a.index[a.order[first]];
      while (last < a.rows && a.index[a.order[last]] == row) ++last;
      for (int64_t column = begin; column < end; column += kStrip) {
        const int64_t n = std::min(kStrip, end - column);
        bf16* out = a.sums + row * a.cols + column;
        simd::for_columns<L, bf16>(n, [&](auto at) ATHANOR_INLINE_LAMBDA { at.store(&sum[0], at.load(out)); });
        for (int64_t i = first; i < last; ++i)
          EmbeddingBackward::accumulate<L>(&sum[0], a.dy + a.order[i] * a.cols + column, n);
        simd::for_columns<L, bf16>(n, [&](auto at) ATHANOR_INLINE_LAMBDA { at.store(out, at.load(&sum[0])); });
      }
    }
  }
};

// index: the row of `grad` that each row of dy is added to; negative: none.
template <class T>
void add_sorted(ThreadPool& pool, const Tensor& grad, const T* dy, const int32_t* index, int64_t rows, int64_t width) {
  std::vector<int32_t> order;
  for (int64_t i = 0; i < rows; ++i)
    if (index[i] >= 0) order.push_back(int32_t(i));
  std::ranges::stable_sort(order, {}, [&](int32_t i) { return index[i]; });
  const SortedRows<T> a{flat<bf16>(grad), dy, index, order.data(), int64_t(order.size()), grad.cols()};
  pool.parallel_ranges(grad.cols(), width,
                       [&](int64_t begin, int64_t end) { simd::dispatch<SumSortedRows>(a, begin, end); });
}

}  // namespace

void CpuOps::run(const EmbeddingFwd& op, void*) {
  const int64_t cols = op.y.cols();
  std::vector<int32_t> in_part;
  if (op.part) in_part = rows_in_part(op.kName, op.tokens, op.part);
  const int32_t* rows = op.part ? in_part.data() : checked_indices(op.kName, "tokens", op.tokens, op.wte.rows());
  const int32_t* positions = op.wpe ? checked_indices(op.kName, "positions", op.positions, op.wpe.rows()) : nullptr;
  by_float(op.y.dtype, [&]<class T>() {
    T* y = flat<T>(op.y);
    const T *wte = flat<T>(op.wte), *wpe = op.wpe ? flat<T>(op.wpe) : nullptr;
    const std::vector<T> zeros(op.part ? size_t(cols) : 0);
    const auto row = [&](int64_t i) { return rows[i] < 0 ? zeros.data() : wte + rows[i] * cols; };
    pool_.parallel_ranges(op.y.rows(), row_grain(cols), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const T* token = row(i);
        if (i + kAhead < end) prefetch_row(row(i + kAhead), size_t(cols) * sizeof(T));
        if (wpe)
          simd::dispatch<AddRow>(y + i * cols, token, wpe + positions[i] * cols, cols);
        else
          std::memcpy(y + i * cols, token, size_t(cols) * sizeof(T));
      }
    });
  });
}

// Every sum runs over the rows in order, so the split into columns may depend on the number of threads.
size_t CpuOps::scratch(const EmbeddingBwd&) const { return 0; }
void CpuOps::run(const EmbeddingBwd& op, void*) {
  const int64_t rows = op.dy.rows(), cols = op.dy.cols();
  const int32_t* positions = op.dwpe ? checked_indices(op.kName, "positions", op.positions, op.dwpe.rows()) : nullptr;
  const int64_t width = round_up(div_ceil(cols, int64_t(pool_.size())), simd::kWidth);
  if (op.dwte.dtype == DType::bf16) {
    std::vector<int32_t> in_part;
    if (op.part) in_part = rows_in_part(op.kName, op.tokens, op.part);
    const int32_t* tokens = op.part ? in_part.data() : checked_indices(op.kName, "tokens", op.tokens, op.dwte.rows());
    return by_float(op.dy.dtype, [&]<class T>() {
      add_sorted(pool_, op.dwte, flat<T>(op.dy), tokens, rows, width);
      if (op.dwpe) add_sorted(pool_, op.dwpe, flat<T>(op.dy), positions, rows, width);
    });
  }
  float *dwte = flat<float>(op.dwte), *dwpe = op.dwpe ? flat<float>(op.dwpe) : nullptr;
  by_float(op.dy.dtype, [&]<class T>() {
    const auto add = [&](const ScatterGrads<T>& grads) {
      pool_.parallel_ranges(cols, width,
                            [&](int64_t begin, int64_t end) { simd::dispatch<EmbeddingBackward>(grads, begin, end); });
    };
    const T* dy = flat<T>(op.dy);
    if (!op.part) {
      const int32_t* tokens = checked_indices(op.kName, "tokens", op.tokens, op.dwte.rows());
      return add({dy, dwte, dwpe, tokens, positions, nullptr, rows, cols});
    }
    std::vector<int32_t> tokens, from;
    const std::vector<int32_t> in_part = rows_in_part(op.kName, op.tokens, op.part);
    for (size_t i = 0; i < in_part.size(); ++i)
      if (in_part[i] >= 0) tokens.push_back(in_part[i]), from.push_back(int32_t(i));
    add({dy, dwte, nullptr, tokens.data(), nullptr, from.data(), int64_t(from.size()), cols});
    if (dwpe) add({dy, dwpe, nullptr, positions, nullptr, nullptr, rows, cols});
  });
}

void CpuOps::run(const Patchify& op, void*) {
  const int64_t columns = op.shape.columns(), rows = 1 + op.shape.patches(), patch = op.shape.patch;
  by_float(op.y.dtype, [&]<class T>() {
    T* y = flat<T>(op.y);
    pool_.parallel_ranges(op.y.rows(), row_grain(columns), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        T* row = y + i * columns;
        if (i % rows == 0) {
          std::fill_n(row, columns, from_float<T>(0.0f));
          continue;
        }
        const uint8_t* image = op.pixels.as<uint8_t>() + i / rows * op.shape.pixels();
        for (int64_t first = 0; first < columns; first += patch) {  // a row of pixels of one channel
          const auto channel = size_t(op.shape.channel(first));
          const float scale = op.scale[channel], shift = op.shift[channel];
          const uint8_t* pixels = image + op.shape.pixel(i % rows - 1, first);
          for (int64_t x = 0; x < patch; ++x) row[first + x] = from_float<T>(scale * float(pixels[x]) + shift);
        }
      }
    });
  });
}

void CpuOps::run(const GatherRows& op, void*) {
  const int32_t* rows = checked_indices(op.kName, "rows", op.rows, op.x.rows());
  const size_t bytes = size_t(op.x.cols()) * size_of(op.x.dtype);
  const int64_t y_stride = op.y.stride(), x_stride = op.x.stride();
  pool_.parallel_ranges(op.y.rows(), row_grain(op.x.cols()), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (i + kAhead < end) prefetch_row(op.x.at(rows[i + kAhead] * x_stride), bytes);
      std::memcpy(op.y.at(i * y_stride), op.x.at(rows[i] * x_stride), bytes);
    }
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
