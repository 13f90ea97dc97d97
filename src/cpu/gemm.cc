// Matrix products and column sums on the thread pool.
#include "cpu/cpu_ops.h"
#include "cpu/simd.h"

namespace athanor {

size_t CpuOps::scratch(const Gemm&) const { return 0; }

void CpuOps::run(const Gemm& op, void*) {
  const int64_t m = op.m(), n = op.n(), k = op.k();
  by_float(op.d.dtype, [&]<class D>() {
    by_float(op.a.dtype, [&]<class A>() {
      by_float(op.b.dtype, [&]<class B>() {
        D* d = op.d.as<D>();
        const A* a = op.a.as<A>();
        const B* b = op.b.as<B>();
        const int64_t as = op.a.stride(), bs = op.b.stride(), ds = op.d.stride();
        pool_.parallel_for(m, [&](int64_t i) {
          for (int64_t j = 0; j < n; ++j) {
            float sum = 0;
            for (int64_t l = 0; l < k; ++l) {
              float x = to_float(op.ta ? a[l * as + i] : a[i * as + l]);
              float y = to_float(op.tb ? b[j * bs + l] : b[l * bs + j]);
              if (op.tf32) x = round_tf32(x), y = round_tf32(y);
              sum += x * y;
            }
            if (op.accumulate) sum += to_float(d[i * ds + j]);
            if (op.bias) by_float(op.bias.dtype, [&]<class T>() { sum += to_float(op.bias.as<T>()[j]); });
            d[i * ds + j] = from_float<D>(sum);
          }
        });
      });
    });
  });
}

size_t CpuOps::scratch(const ColumnSum&) const { return 0; }

void CpuOps::run(const ColumnSum& op, void*) {
  const int64_t rows = op.x.rows(), cols = op.x.cols();
  by_float(op.x.dtype, [&]<class T>() {
    const T* x = op.x.as<T>();
    float* out = op.out.as<float>();
    pool_.parallel_ranges(cols, 64, [&](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) {
        float sum = 0;
        for (int64_t r = 0; r < rows; ++r) sum += to_float(x[r * cols + c]);
        out[c] += sum;
      }
    });
  });
}

}  // namespace athanor
