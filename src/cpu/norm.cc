// RMSNorm and LayerNorm, and per-head RMSNorm of queries and keys. Memory bound: a row is read once and its passes run
// in the L1 cache. Sums are in f32.
#include <cmath>
#include <cstring>

#include "cpu/amax.h"
#include "cpu/chunks.h"
#include "cpu/cpu_ops.h"
#include "cpu/vec.h"

namespace athanor {
namespace {

using simd::Vec;

struct RowStats {
  float mean, rstd;  // mean is 0 for rms
};

// [Zhang & Sennrich 2019, eq. 4], of n elements.
ATHANOR_INLINE float inverse_rms(float squares, int64_t n, float eps) {
  return 1.0f / std::sqrt(squares / float(n) + eps);
}

// The layer norm's variance needs the mean first.
template <int L, class T>
ATHANOR_INLINE RowStats row_stats(const T* h, int64_t n, float eps, bool layer) {
  float mean = 0;
  if (layer) {
    Vec<L> sum = simd::broadcast<L>(0);
    simd::for_columns<L, T>(n, [&](auto at) ATHANOR_INLINE_LAMBDA { sum += at.load(h); });
    mean = simd::sum(sum) / float(n);
  }
  Vec<L> squares = simd::broadcast<L>(0);
  simd::for_columns<L, T>(n, [&](auto at) ATHANOR_INLINE_LAMBDA {
    const Vec<L> d = at.or_else(at.load(h) - mean, 0);
    squares += d * d;
  });
  return {mean, inverse_rms(simd::sum(squares), n, eps)};
}

// y = (h - mean) * rstd * w + b; b is absent for rms. The only code that computes y, so that all ops give the same
// bits.
template <int L, class T>
ATHANOR_INLINE void apply_row(T* y, const T* h, RowStats s, const float* w, const float* b, int64_t n) {
  if (b)
    simd::for_columns<L, T>(n, [&](auto at) ATHANOR_INLINE_LAMBDA {
      at.store(y, (at.load(h) - s.mean) * s.rstd * at.load(w) + at.load(b));
    });
  else
    simd::for_columns<L, T>(n, [&](auto at) ATHANOR_INLINE_LAMBDA { at.store(y, at.load(h) * s.rstd * at.load(w)); });
}

template <class T>
struct NormRows {
  T* y;
  float *mean, *rstd;  // mean is null for rms
  const T* h;
  const float *w, *b;
  int64_t cols;
  float eps;
};

struct NormForward {
  template <int L, class T>
  static ATHANOR_INLINE void run(const NormRows<T>& a, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const T* h = a.h + i * a.cols;
      const RowStats s = row_stats<L>(h, a.cols, a.eps, a.b != nullptr);
      a.rstd[i] = s.rstd;
      if (a.mean) a.mean[i] = s.mean;
      apply_row<L>(a.y + i * a.cols, h, s, a.w, a.b, a.cols);
    }
  }
};

struct ApplyNorm {
  template <int L, class T>
  static ATHANOR_INLINE void run(const NormRows<T>& a, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      apply_row<L>(a.y + i * a.cols, a.h + i * a.cols, {a.mean ? a.mean[i] : 0, a.rstd[i]}, a.w, a.b, a.cols);
  }
};

template <class T>
struct NormBwdRows {
  T* dh;
  const T *dy, *h;
  const float *mean, *rstd;  // mean is null for rms
  const float* w;
  int64_t cols;
};

// With x = (h - mean) rstd and g = dy w: dh += rstd (g - mean(g) - x mean(g x)), without mean(g) for rms. Partial sums
// of these rows: dw += dy x and db += dy.
struct NormBackward {
  static constexpr int kGroup = 4;  // rows whose weight gradients are added before they are written to the partial sums

  template <int L, class T>
  static ATHANOR_INLINE void run(const NormBwdRows<T>& a, float* dw, float* db, int64_t begin, int64_t end) {
    std::memset(dw, 0, size_t(a.cols) * sizeof(float));
    if (db) std::memset(db, 0, size_t(a.cols) * sizeof(float));
    int64_t i = begin;
    for (; i + kGroup <= end; i += kGroup) {
      for (int64_t r = i; r < i + kGroup; ++r) input_gradient<L>(a, r);
      weight_gradients<L, kGroup>(a, dw, db, i);
    }
    for (; i < end; ++i) {
      input_gradient<L>(a, i);
      weight_gradients<L, 1>(a, dw, db, i);
    }
  }

  template <int L, class T>
  static ATHANOR_INLINE void input_gradient(const NormBwdRows<T>& a, int64_t row) {
    const T *dy = a.dy + row * a.cols, *h = a.h + row * a.cols;
    T* dh = a.dh + row * a.cols;
    const float mean = a.mean ? a.mean[row] : 0, rstd = a.rstd[row];
    Vec<L> sum_g = simd::broadcast<L>(0), sum_gx = sum_g;
    simd::for_columns<L, T>(a.cols, [&](auto at) ATHANOR_INLINE_LAMBDA {
      const Vec<L> g = at.load(dy) * at.load(a.w);  // 0 past the end
      sum_g += g;
      sum_gx += g * ((at.load(h) - mean) * rstd);
    });
    const float mean_g = a.mean ? simd::sum(sum_g) / float(a.cols) : 0, mean_gx = simd::sum(sum_gx) / float(a.cols);
    simd::for_columns<L, T>(a.cols, [&](auto at) ATHANOR_INLINE_LAMBDA {
      const Vec<L> x = (at.load(h) - mean) * rstd, g = at.load(dy) * at.load(a.w);
      at.store(dh, at.load(dh) + rstd * (g - mean_g - x * mean_gx));
    });
  }

  template <int L, int kRows, class T>
  static ATHANOR_INLINE void weight_gradients(const NormBwdRows<T>& a, float* dw, float* db, int64_t row) {
    const T *dy = a.dy + row * a.cols, *h = a.h + row * a.cols;
    simd::for_columns<L, T>(a.cols, [&](auto at) ATHANOR_INLINE_LAMBDA {
      Vec<L> sum = simd::broadcast<L>(0), sum_x = sum;
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const float mean = a.mean ? a.mean[row + r] : 0;
        const Vec<L> d = at.load(dy + r * a.cols);
        sum += d;
        sum_x += d * ((at.load(h + r * a.cols) - mean) * a.rstd[row + r]);
      }
      at.store(dw, at.load(dw) + sum_x);
      if (db) at.store(db, at.load(db) + sum);
    });
  }
};

// out[begin, end) += the same columns of `count` rows of partial sums, in order.
struct AddPartials {
  template <int L, class T>
  static ATHANOR_INLINE void run(T* out, const float* partials, int64_t count, int64_t stride, int64_t begin,
                                 int64_t end) {
    simd::for_columns<L, float>(end - begin, [&](auto at) ATHANOR_INLINE_LAMBDA {
      Vec<L> sum = simd::broadcast<L>(0);
      for (int64_t k = 0; k < count; ++k) sum += at.load(partials + k * stride + begin);
      at.store(out + begin, at.load(out + begin) + sum);
    });
  }
};

void add_partials(const Tensor& out, const float* partials, int64_t count, int64_t stride, int64_t begin, int64_t end) {
  by_float(out.dtype,
           [&]<class T>() { simd::dispatch<AddPartials>(out.as<T>(), partials, count, stride, begin, end); });
}

// A per-feature vector as f32: in place if it is f32, else converted into `workspace`.
const float* as_f32(const Tensor& w, float* workspace) {
  if (!w) return nullptr;
  if (w.dtype == DType::f32) return w.as<float>();
  by_float(w.dtype, [&]<class W>() {
    for (int64_t i = 0; i < w.numel(); ++i) workspace[i] = to_float(w.as<W>()[i]);
  });
  return workspace;
}

size_t f32_bytes(const Tensor& w) { return w && w.dtype != DType::f32 ? size_t(w.numel()) * sizeof(float) : 0; }

template <class T>
T* data_or_null(const Tensor& t) {
  return t ? flat<T>(t) : nullptr;
}

}  // namespace

size_t CpuOps::scratch(const NormFwd& op) const { return f32_bytes(op.w) + f32_bytes(op.b); }
void CpuOps::run(const NormFwd& op, void* scratch) {
  float* workspace = static_cast<float*>(scratch);
  const int64_t cols = op.h.cols();
  const float *w = as_f32(op.w, workspace), *b = as_f32(op.b, workspace + cols);
  const Amax amax(op.amax);
  by_float(op.h.dtype, [&]<class T>() {
    const NormRows<T> rows{flat<T>(op.y), data_or_null<float>(op.mean), flat<float>(op.rstd), flat<T>(op.h), w, b, cols,
                           op.eps};
    pool_.parallel_ranges(op.h.rows(), row_grain(cols), [&](int64_t begin, int64_t end) {
      simd::dispatch<NormForward>(rows, begin, end);
      amax.add_rows(op.y, begin, end);
    });
  });
}

size_t CpuOps::scratch(const NormApply& op) const { return f32_bytes(op.w) + f32_bytes(op.b); }
void CpuOps::run(const NormApply& op, void* scratch) {
  float* workspace = static_cast<float*>(scratch);
  const int64_t cols = op.h.cols();
  const float *w = as_f32(op.w, workspace), *b = as_f32(op.b, workspace + cols);
  by_float(op.h.dtype, [&]<class T>() {
    const NormRows<T> rows{
        flat<T>(op.y), data_or_null<float>(op.mean), flat<float>(op.rstd), flat<T>(op.h), w, b, cols, 0};
    pool_.parallel_ranges(op.h.rows(), row_grain(cols),
                          [&](int64_t begin, int64_t end) { simd::dispatch<ApplyNorm>(rows, begin, end); });
  });
}

size_t CpuOps::scratch(const NormBwd& op) const {
  const size_t partial = size_t(op.h.cols()) * sizeof(float) * (op.db ? 2 : 1);
  return partial * size_t(RowBlocks(op.h.rows()).count) + f32_bytes(op.w);
}
void CpuOps::run(const NormBwd& op, void* scratch) {
  const int64_t n = op.h.rows(), cols = op.h.cols();
  const RowBlocks blocks(n);
  const int64_t stride = cols * (op.db ? 2 : 1);
  float* partials = static_cast<float*>(scratch);
  const float* w = as_f32(op.w, partials + blocks.count * stride);
  const Amax amax(op.amax);
  by_float(op.h.dtype, [&]<class T>() {
    const NormBwdRows<T> rows{
        flat<T>(op.dh), flat<T>(op.dy), flat<T>(op.h), data_or_null<float>(op.mean), flat<float>(op.rstd), w, cols};
    pool_.parallel_for(blocks.count, [&](int64_t k) {
      float* dw = partials + k * stride;
      const int64_t begin = k * blocks.rows_per_block, end = std::min(n, begin + blocks.rows_per_block);
      float* db = op.db ? dw + cols : nullptr;
      simd::dispatch<NormBackward>(rows, dw, db, begin, end);
      amax.add_rows(op.dh, begin, end);
    });
  });
  pool_.parallel_ranges(cols, 512, [&](int64_t begin, int64_t end) {
    add_partials(op.dw, partials, blocks.count, stride, begin, end);
    if (op.db) add_partials(op.db, partials + cols, blocks.count, stride, begin, end);
  });
}

namespace {

template <class T>
struct QkRows {
  T* y;
  float* rstd;
  const T* x;
  const float *wq, *wk;
  int64_t heads, kv_heads, head_dim;
  float eps;
  const float* sums;  // over whole heads, with `whole` elements; null: a head's own
  int64_t whole;
  int64_t cols() const { return (heads + 2 * kv_heads) * head_dim; }
};

struct QkNorm {
  template <int L, class T>
  static ATHANOR_INLINE void run(const QkRows<T>& a, int64_t begin, int64_t end) {
    const int64_t d = a.head_dim, normed = a.heads + a.kv_heads, cols = a.cols();
    for (int64_t i = begin; i < end; ++i) {
      const T* x = a.x + i * cols;
      T* y = a.y + i * cols;
      for (int64_t h = 0; h < normed; ++h) {
        const int64_t at = i * normed + h;
        const RowStats s =
            a.sums ? RowStats{0, inverse_rms(a.sums[at], a.whole, a.eps)} : row_stats<L>(x + h * d, d, a.eps, false);
        a.rstd[at] = s.rstd;
        apply_row<L>(y + h * d, x + h * d, s, h < a.heads ? a.wq : a.wk, nullptr, d);
      }
      std::memcpy(y + normed * d, x + normed * d, size_t(a.kv_heads * d) * sizeof(T));
    }
  }
};

template <class T>
struct QkBwdRows {
  T* dx;
  const T *dy, *x;
  const float *rstd, *wq, *wk;
  int64_t heads, kv_heads, head_dim;
  const float* sums;  // as in QkRows
  int64_t whole;
};

// NormBackward for rms per head, without an incoming dx; dw = [dwq | dwk] of these rows.
struct QkNormBackward {
  template <int L, class T>
  static ATHANOR_INLINE void run(const QkBwdRows<T>& a, float* dw, int64_t begin, int64_t end) {
    const int64_t d = a.head_dim, normed = a.heads + a.kv_heads, cols = (a.heads + 2 * a.kv_heads) * d;
    std::memset(dw, 0, size_t(2 * d) * sizeof(float));
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t h = 0; h < normed; ++h) {
        const int64_t head = i * cols + h * d;
        const bool query = h < a.heads;
        const float* w = query ? a.wq : a.wk;
        const float rstd = a.rstd[i * normed + h];
        const float own = gain_gradient<L>(query ? dw : dw + d, a.dy + head, a.x + head, rstd, w, d);
        const float sum = a.sums ? rstd * a.sums[i * normed + h] : own;
        input_gradient<L>(a.dx + head, a.dy + head, a.x + head, {sum / float(a.whole), rstd}, w, d);
      }
      const int64_t v = i * cols + normed * d;
      std::memcpy(a.dx + v, a.dy + v, size_t(a.kv_heads * d) * sizeof(T));
    }
  }

  // Adds to dw, and returns the sum of g x over the head.
  template <int L, class T>
  static ATHANOR_INLINE float gain_gradient(float* dw, const T* dy, const T* x, float rstd, const float* w, int64_t d) {
    Vec<L> sum_gx = simd::broadcast<L>(0);
    simd::for_columns<L, T>(d, [&](auto at) ATHANOR_INLINE_LAMBDA {
      const Vec<L> dyx = at.load(dy) * (at.load(x) * rstd);
      sum_gx += dyx * at.load(w);
      at.store(dw, at.load(dw) + dyx);
    });
    return simd::sum(sum_gx);
  }

  // s.mean: that of g x over the whole head.
  template <int L, class T>
  static ATHANOR_INLINE void input_gradient(T* dx, const T* dy, const T* x, RowStats s, const float* w, int64_t d) {
    simd::for_columns<L, T>(d, [&](auto at) ATHANOR_INLINE_LAMBDA {
      at.store(dx, s.rstd * (at.load(dy) * at.load(w) - at.load(x) * s.rstd * s.mean));
    });
  }
};

template <class T>
struct QkSumRows {
  float* sums;
  const T *dy, *x;  // dy: optional
  const float *wq, *wk;
  int64_t heads, kv_heads, head_dim;
};

struct SumHeads {
  template <int L, class T>
  static ATHANOR_INLINE void run(const QkSumRows<T>& a, int64_t begin, int64_t end) {
    const int64_t d = a.head_dim, normed = a.heads + a.kv_heads, cols = (a.heads + 2 * a.kv_heads) * d;
    for (int64_t i = begin; i < end; ++i)
      for (int64_t h = 0; h < normed; ++h) {
        const T* x = a.x + i * cols + h * d;
        a.sums[i * normed + h] =
            a.dy ? dot_with_gain<L>(a.dy + i * cols + h * d, x, h < a.heads ? a.wq : a.wk, d) : squares<L>(x, d);
      }
  }
  template <int L, class T>
  static ATHANOR_INLINE float squares(const T* x, int64_t d) {
    Vec<L> sum = simd::broadcast<L>(0);
    simd::for_columns<L, T>(d, [&](auto at) ATHANOR_INLINE_LAMBDA { sum += at.load(x) * at.load(x); });
    return simd::sum(sum);
  }
  template <int L, class T>
  static ATHANOR_INLINE float dot_with_gain(const T* dy, const T* x, const float* w, int64_t d) {
    Vec<L> sum = simd::broadcast<L>(0);
    simd::for_columns<L, T>(d, [&](auto at) ATHANOR_INLINE_LAMBDA { sum += at.load(dy) * at.load(w) * at.load(x); });
    return simd::sum(sum);
  }
};

}  // namespace

size_t CpuOps::scratch(const QkNormFwd& op) const { return f32_bytes(op.wq) + f32_bytes(op.wk); }
void CpuOps::run(const QkNormFwd& op, void* scratch) {
  float* workspace = static_cast<float*>(scratch);
  const int64_t d = op.wq.shape[0];
  const float *wq = as_f32(op.wq, workspace), *wk = as_f32(op.wk, workspace + d);
  by_float(op.x.dtype, [&]<class T>() {
    const QkRows<T> rows{flat<T>(op.y), flat<float>(op.rstd),         flat<T>(op.x), wq, wk, op.heads, op.kv_heads, d,
                         op.eps,        data_or_null<float>(op.sums), d * op.parts};
    pool_.parallel_ranges(op.x.rows(), row_grain(op.x.cols()),
                          [&](int64_t begin, int64_t end) { simd::dispatch<QkNorm>(rows, begin, end); });
  });
}

size_t CpuOps::scratch(const QkNormBwd& op) const {
  const size_t partial = size_t(2 * op.wq.shape[0]) * sizeof(float);
  return partial * size_t(RowBlocks(op.x.rows()).count) + f32_bytes(op.wq) + f32_bytes(op.wk);
}
void CpuOps::run(const QkNormBwd& op, void* scratch) {
  const int64_t n = op.x.rows(), d = op.wq.shape[0];
  const RowBlocks blocks(n);
  float* partials = static_cast<float*>(scratch);
  float* workspace = partials + blocks.count * 2 * d;
  const float *wq = as_f32(op.wq, workspace), *wk = as_f32(op.wk, workspace + d);
  by_float(op.x.dtype, [&]<class T>() {
    const QkBwdRows<T> rows{flat<T>(op.dx),
                            flat<T>(op.dy),
                            flat<T>(op.x),
                            flat<float>(op.rstd),
                            wq,
                            wk,
                            op.heads,
                            op.kv_heads,
                            d,
                            data_or_null<float>(op.sums),
                            d * op.parts};
    pool_.parallel_for(blocks.count, [&](int64_t k) {
      const int64_t begin = k * blocks.rows_per_block;
      simd::dispatch<QkNormBackward>(rows, partials + k * 2 * d, begin, std::min(n, begin + blocks.rows_per_block));
    });
  });
  add_partials(op.dwq, partials, blocks.count, 2 * d, 0, d);
  add_partials(op.dwk, partials + d, blocks.count, 2 * d, 0, d);
}

size_t CpuOps::scratch(const QkNormSums& op) const { return op.dy ? f32_bytes(op.wq) + f32_bytes(op.wk) : 0; }
void CpuOps::run(const QkNormSums& op, void* scratch) {
  float* workspace = static_cast<float*>(scratch);
  const int64_t d = op.wq.shape[0];
  const float *wq = op.dy ? as_f32(op.wq, workspace) : nullptr, *wk = op.dy ? as_f32(op.wk, workspace + d) : nullptr;
  by_float(op.x.dtype, [&]<class T>() {
    const QkSumRows<T> rows{
        flat<float>(op.sums), data_or_null<T>(op.dy), flat<T>(op.x), wq, wk, op.heads, op.kv_heads, d};
    pool_.parallel_ranges(op.x.rows(), row_grain(op.x.cols()),
                          [&](int64_t begin, int64_t end) { simd::dispatch<SumHeads>(rows, begin, end); });
  });
}

}  // namespace athanor
