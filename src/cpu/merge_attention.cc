// Merges attention over two sets of keys: each head's output is weighted by its share of the softmax denominator.
// Memory bound.
#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/chunks.h"
#include "cpu/cpu_ops.h"
#include "cpu/simd.h"

namespace athanor {
namespace {

template <class T>
ATHANOR_CLONES void weigh(float* y, const T* part, float of_y, float of_part, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = y[i] * of_y + to_float(part[i]) * of_part;
}

}  // namespace

void CpuOps::run(const MergeAttention& op, void*) {
  const int64_t heads = op.lse.cols(), dim = op.y.cols() / heads;
  by_float(op.part.dtype, [&]<class T>() {
    float *y = op.y.as<float>(), *lse = op.lse.as<float>();
    const T* part = op.part.as<T>();
    const float* part_lse = op.part_lse.as<float>();
    pool_.parallel_ranges(op.lse.numel(), row_grain(dim), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const float most = std::max(lse[i], part_lse[i]);
        if (most == -std::numeric_limits<float>::infinity()) continue;
        const float mine = std::exp(lse[i] - most), more = std::exp(part_lse[i] - most), sum = mine + more;
        weigh(y + i * dim, part + i * dim, mine / sum, more / sum, dim);
        lse[i] = most + std::log(sum);
      }
    });
  });
}

}  // namespace athanor
