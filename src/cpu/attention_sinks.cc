// Attention sinks: each head's output is multiplied by the softmax weight that the sink leaves to the keys; the sink's
// gradient is a sum over queries. Memory bound.
#include <algorithm>
#include <cmath>

#include "cpu/chunks.h"
#include "cpu/cpu_ops.h"
#include "cpu/simd.h"

namespace athanor {
namespace {

template <class T>
ATHANOR_CLONES void multiply_row(T* y, float factor, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = from_float<T>(to_float(y[i]) * factor);
}

template <class T>
ATHANOR_CLONES float dot_rows(const T* a, const T* b, int64_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += to_float(a[i]) * to_float(b[i]);
  return sum;
}

}  // namespace

void CpuOps::run(const AttentionSinks& op, void*) {
  const int64_t heads = op.lse.cols(), dim = op.y.cols() / heads;
  by_float(op.y.dtype, [&]<class T>() {
    by_float(op.sinks.dtype, [&]<class S>() {
      T* y = op.y.as<T>();
      float* lse = op.lse.as<float>();
      const S* sinks = op.sinks.as<S>();
      pool_.parallel_ranges(op.lse.numel(), row_grain(dim), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const float sink = to_float(sinks[i % heads]), most = std::max(lse[i], sink);
          const float keys = std::exp(lse[i] - most), sum = keys + std::exp(sink - most);
          multiply_row(y + i * dim, keys / sum, dim);
          lse[i] = most + std::log(sum);
        }
      });
    });
  });
}

void CpuOps::run(const AttentionSinksBwd& op, void*) {
  const int64_t heads = op.lse.cols(), dim = op.y.cols() / heads, rows = op.y.rows();
  const auto value = [](const Tensor& t, int64_t i) {
    double x = 0;
    by_float(t.dtype, [&]<class T>() { x = double(to_float(t.as<T>()[i])); });
    return x;
  };
  by_float(op.y.dtype, [&]<class T>() {
    const T *y = op.y.as<T>(), *dy = op.dy.as<T>();
    const float* lse = op.lse.as<float>();
    pool_.parallel_for(heads, [&](int64_t h, int) {
      const double sink = value(op.sinks, h);
      double sum = 0;
      for (int64_t i = h; i < rows * heads; i += heads)
        sum += std::exp(sink - double(lse[i])) * double(dot_rows(dy + i * dim, y + i * dim, dim));
      by_float(op.dsinks.dtype,
               [&]<class G>() { op.dsinks.as<G>()[h] = from_float<G>(float(value(op.dsinks, h) - sum)); });
    });
  });
}

}  // namespace athanor
