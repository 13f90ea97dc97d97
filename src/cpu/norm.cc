// Residual add with RMSNorm or LayerNorm, and per-head RMSNorm of queries and keys. Memory bound: a row is read once
// and its passes run in the L1 cache. Row functions are compiled per instruction set; sums are f32.
#include "cpu/chunks.h"
#include "cpu/cpu_ops.h"
#include "cpu/simd.h"

#include <cmath>
#include <cstring>

namespace athanor {
namespace {

struct RowStats {
  float mean, rstd;  // mean is 0 for rms
};

// h = round(res + delta)
template <class T>
ATHANOR_INLINE void add_row(T* h, const T* res, const T* delta, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) h[i] = from_float<T>(to_float(res[i]) + to_float(delta[i]));
}

template <class T>
ATHANOR_INLINE RowStats row_stats(const T* h, int64_t n, float eps, bool layer) {
  float mean = 0;
  if (layer) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; ++i) sum += to_float(h[i]);
    mean = sum / float(n);
  }
  float squares = 0;
#pragma omp simd reduction(+ : squares)
  for (int64_t i = 0; i < n; ++i) {
    const float d = to_float(h[i]) - mean;
    squares += d * d;
  }
  return {mean, 1.0f / std::sqrt(squares / float(n) + eps)};
}

// y = (h - mean) * rstd * w + b; b is absent for rms. The one place that computes y, for the same bits everywhere.
template <class T>
ATHANOR_INLINE void apply_row(T* y, const T* h, RowStats s, const float* w, const float* b, int64_t n) {
  if (b) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] = from_float<T>((to_float(h[i]) - s.mean) * s.rstd * w[i] + b[i]);
  } else {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] = from_float<T>(to_float(h[i]) * s.rstd * w[i]);
  }
}

template <class T>
struct NormRows {
  T *h, *y;
  float *mean, *rstd;  // mean is null for rms
  const T *res, *delta;
  const float *w, *b;
  int64_t cols;
  float eps;
};

template <class T>
ATHANOR_CLONES void add_norm_rows(const NormRows<T>& a, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    const int64_t at = i * a.cols;
    const T* h = a.res + at;
    if (a.delta) {
      add_row(a.h + at, a.res + at, a.delta + at, a.cols);
      h = a.h + at;
    }
    const RowStats s = row_stats(h, a.cols, a.eps, a.b != nullptr);
    a.rstd[i] = s.rstd;
    if (a.mean) a.mean[i] = s.mean;
    apply_row(a.y + at, h, s, a.w, a.b, a.cols);
  }
}

template <class T>
ATHANOR_CLONES void norm_apply_rows(const NormRows<T>& a, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i)
    apply_row(a.y + i * a.cols, a.h + i * a.cols, {a.mean ? a.mean[i] : 0, a.rstd[i]}, a.w, a.b, a.cols);
}

template <class T>
struct NormBwdRows {
  T* dh;
  const T *dy, *h;
  const float *mean, *rstd;  // mean is null for rms
  const float* w;
  int64_t cols;
};

// With x = (h - mean) rstd and g = dy w:  dh += rstd (g - mean(g) - x mean(g x)), without mean(g) for rms;
// dw += dy x, db += dy into the partial sums of these rows.
template <class T>
ATHANOR_CLONES void add_norm_bwd_rows(const NormBwdRows<T>& a, float* dw, float* db, int64_t begin, int64_t end) {
  const int64_t n = a.cols;
  std::memset(dw, 0, size_t(n) * sizeof(float));
  if (db) std::memset(db, 0, size_t(n) * sizeof(float));
  for (int64_t i = begin; i < end; ++i) {
    const T *dy = a.dy + i * n, *h = a.h + i * n;
    T* dh = a.dh + i * n;
    const float mean = a.mean ? a.mean[i] : 0, rstd = a.rstd[i];
    float sum_g = 0, sum_gx = 0;
    if (db) {
#pragma omp simd reduction(+ : sum_g, sum_gx)
      for (int64_t c = 0; c < n; ++c) {
        const float d = to_float(dy[c]), x = (to_float(h[c]) - mean) * rstd, g = d * a.w[c];
        sum_g += g;
        sum_gx += g * x;
        dw[c] += d * x;
        db[c] += d;
      }
    } else {
#pragma omp simd reduction(+ : sum_gx)
      for (int64_t c = 0; c < n; ++c) {
        const float d = to_float(dy[c]), x = to_float(h[c]) * rstd;
        sum_gx += d * a.w[c] * x;
        dw[c] += d * x;
      }
    }
    const float mean_g = sum_g / float(n), mean_gx = sum_gx / float(n);
#pragma omp simd
    for (int64_t c = 0; c < n; ++c) {
      const float x = (to_float(h[c]) - mean) * rstd, g = to_float(dy[c]) * a.w[c];
      dh[c] = from_float<T>(to_float(dh[c]) + rstd * (g - mean_g - x * mean_gx));
    }
  }
}

// out[begin, end) += the same columns of `count` rows of partial sums, in order.
ATHANOR_CLONES void add_partials(float* out, const float* partials, int64_t count, int64_t stride, int64_t begin,
                                 int64_t end) {
  constexpr int64_t kWidth = 64;
  for (int64_t c0 = begin; c0 < end; c0 += kWidth) {
    const int64_t n = std::min(kWidth, end - c0);
    float sum[kWidth] = {};
    for (int64_t k = 0; k < count; ++k) {
      const float* p = partials + k * stride + c0;
#pragma omp simd
      for (int64_t c = 0; c < n; ++c) sum[c] += p[c];
    }
#pragma omp simd
    for (int64_t c = 0; c < n; ++c) out[c0 + c] += sum[c];
  }
}

// A per-feature vector as f32: in place when it is f32 already, else converted into `room`.
const float* as_f32(const Tensor& w, float* room) {
  if (!w) return nullptr;
  if (w.dtype == DType::f32) return w.as<float>();
  by_float(w.dtype, [&]<class W>() { load_row(room, w.as<W>(), w.numel()); });
  return room;
}

size_t f32_bytes(const Tensor& w) { return w && w.dtype != DType::f32 ? size_t(w.numel()) * sizeof(float) : 0; }

template <class T>
T* data_or_null(const Tensor& t) {
  return t ? flat<T>(t) : nullptr;
}

}  // namespace

size_t CpuOps::scratch(const AddNormFwd& op) const { return f32_bytes(op.w) + f32_bytes(op.b); }
void CpuOps::run(const AddNormFwd& op, void* scratch) {
  float* room = static_cast<float*>(scratch);
  const int64_t cols = op.res.cols();
  const float *w = as_f32(op.w, room), *b = as_f32(op.b, room + cols);
  by_float(op.res.dtype, [&]<class T>() {
    const NormRows<T> rows{data_or_null<T>(op.h),
                           flat<T>(op.y),
                           data_or_null<float>(op.mean),
                           flat<float>(op.rstd),
                           flat<T>(op.res),
                           data_or_null<T>(op.delta),
                           w,
                           b,
                           cols,
                           op.eps};
    pool_.parallel_ranges(op.res.rows(), row_grain(cols),
                          [&](int64_t begin, int64_t end) { add_norm_rows(rows, begin, end); });
  });
}

size_t CpuOps::scratch(const NormApply& op) const { return f32_bytes(op.w) + f32_bytes(op.b); }
void CpuOps::run(const NormApply& op, void* scratch) {
  float* room = static_cast<float*>(scratch);
  const int64_t cols = op.h.cols();
  const float *w = as_f32(op.w, room), *b = as_f32(op.b, room + cols);
  by_float(op.h.dtype, [&]<class T>() {
    const NormRows<T> rows{flat<T>(op.h),
                           flat<T>(op.y),
                           data_or_null<float>(op.mean),
                           flat<float>(op.rstd),
                           nullptr,
                           nullptr,
                           w,
                           b,
                           cols,
                           0};
    pool_.parallel_ranges(op.h.rows(), row_grain(cols),
                          [&](int64_t begin, int64_t end) { norm_apply_rows(rows, begin, end); });
  });
}

size_t CpuOps::scratch(const AddNormBwd& op) const {
  const size_t partial = size_t(op.h.cols()) * sizeof(float) * (op.db ? 2 : 1);
  return partial * size_t(RowBlocks(op.h.rows()).count) + f32_bytes(op.w);
}
void CpuOps::run(const AddNormBwd& op, void* scratch) {
  const int64_t n = op.h.rows(), cols = op.h.cols();
  const RowBlocks blocks(n);
  const int64_t stride = cols * (op.db ? 2 : 1);
  float* partials = static_cast<float*>(scratch);
  const float* w = as_f32(op.w, partials + blocks.count * stride);
  by_float(op.h.dtype, [&]<class T>() {
    const NormBwdRows<T> rows{
        flat<T>(op.dh), flat<T>(op.dy), flat<T>(op.h), data_or_null<float>(op.mean), flat<float>(op.rstd), w, cols};
    pool_.parallel_for(blocks.count, [&](int64_t k) {
      float* dw = partials + k * stride;
      const int64_t begin = k * blocks.rows_per_block;
      add_norm_bwd_rows(rows, dw, op.db ? dw + cols : nullptr, begin, std::min(n, begin + blocks.rows_per_block));
    });
  });
  pool_.parallel_ranges(cols, 512, [&](int64_t begin, int64_t end) {
    add_partials(op.dw.as<float>(), partials, blocks.count, stride, begin, end);
    if (op.db) add_partials(op.db.as<float>(), partials + cols, blocks.count, stride, begin, end);
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
  int64_t cols() const { return (heads + 2 * kv_heads) * head_dim; }
};

template <class T>
ATHANOR_CLONES void qk_norm_rows(const QkRows<T>& a, int64_t begin, int64_t end) {
  const int64_t d = a.head_dim, normed = a.heads + a.kv_heads, cols = (a.heads + 2 * a.kv_heads) * d;
  for (int64_t i = begin; i < end; ++i) {
    const T* x = a.x + i * cols;
    T* y = a.y + i * cols;
    for (int64_t h = 0; h < normed; ++h) {
      const RowStats s = row_stats(x + h * d, d, a.eps, false);
      a.rstd[i * normed + h] = s.rstd;
      apply_row(y + h * d, x + h * d, s, h < a.heads ? a.wq : a.wk, nullptr, d);
    }
    std::memcpy(y + normed * d, x + normed * d, size_t(a.kv_heads * d) * sizeof(T));
  }
}

template <class T>
struct QkBwdRows {
  T* dx;
  const T *dy, *x;
  const float *rstd, *wq, *wk;
  int64_t heads, kv_heads, head_dim;
};

// Per head as add_norm_bwd_rows for rms, without an incoming dx; dw = [dwq | dwk] of these rows.
template <class T>
ATHANOR_CLONES void qk_norm_bwd_rows(const QkBwdRows<T>& a, float* dw, int64_t begin, int64_t end) {
  const int64_t d = a.head_dim, normed = a.heads + a.kv_heads, cols = (a.heads + 2 * a.kv_heads) * d;
  std::memset(dw, 0, size_t(2 * d) * sizeof(float));
  for (int64_t i = begin; i < end; ++i) {
    for (int64_t h = 0; h < normed; ++h) {
      const T *dy = a.dy + i * cols + h * d, *x = a.x + i * cols + h * d;
      T* dx = a.dx + i * cols + h * d;
      const float* w = h < a.heads ? a.wq : a.wk;
      float* dwh = h < a.heads ? dw : dw + d;
      const float rstd = a.rstd[i * normed + h];
      float sum_gx = 0;
#pragma omp simd reduction(+ : sum_gx)
      for (int64_t c = 0; c < d; ++c) {
        const float g = to_float(dy[c]), xn = to_float(x[c]) * rstd;
        sum_gx += g * w[c] * xn;
        dwh[c] += g * xn;
      }
      const float mean_gx = sum_gx / float(d);
#pragma omp simd
      for (int64_t c = 0; c < d; ++c)
        dx[c] = from_float<T>(rstd * (to_float(dy[c]) * w[c] - to_float(x[c]) * rstd * mean_gx));
    }
    std::memcpy(a.dx + i * cols + normed * d, a.dy + i * cols + normed * d, size_t(a.kv_heads * d) * sizeof(T));
  }
}

}  // namespace

size_t CpuOps::scratch(const QkNormFwd& op) const { return f32_bytes(op.wq) + f32_bytes(op.wk); }
void CpuOps::run(const QkNormFwd& op, void* scratch) {
  float* room = static_cast<float*>(scratch);
  const int64_t d = op.wq.shape[0];
  const float *wq = as_f32(op.wq, room), *wk = as_f32(op.wk, room + d);
  by_float(op.x.dtype, [&]<class T>() {
    const QkRows<T> rows{flat<T>(op.y), flat<float>(op.rstd), flat<T>(op.x), wq, wk, op.heads, op.kv_heads, d, op.eps};
    pool_.parallel_ranges(op.x.rows(), row_grain(op.x.cols()),
                          [&](int64_t begin, int64_t end) { qk_norm_rows(rows, begin, end); });
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
  float* room = partials + blocks.count * 2 * d;
  const float *wq = as_f32(op.wq, room), *wk = as_f32(op.wk, room + d);
  by_float(op.x.dtype, [&]<class T>() {
    const QkBwdRows<T> rows{
        flat<T>(op.dx), flat<T>(op.dy), flat<T>(op.x), flat<float>(op.rstd), wq, wk, op.heads, op.kv_heads, d};
    pool_.parallel_for(blocks.count, [&](int64_t k) {
      const int64_t begin = k * blocks.rows_per_block;
      qk_norm_bwd_rows(rows, partials + k * 2 * d, begin, std::min(n, begin + blocks.rows_per_block));
    });
  });
  add_partials(op.dwq.as<float>(), partials, blocks.count, 2 * d, 0, d);
  add_partials(op.dwk.as<float>(), partials + d, blocks.count, 2 * d, 0, d);
}

}  // namespace athanor
