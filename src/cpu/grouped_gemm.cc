// Grouped GEMM: one GEMM per expert, one after the other, each on all threads. The offsets of the experts' rows are
// read here, in host memory. The blocking of each GEMM depends on its own rows only.
#include <algorithm>

#include "cpu/cpu_ops.h"
#include "cpu/gemm_blocked.h"
#include "cpu/gemm_small.h"

namespace athanor {

size_t CpuOps::scratch(const GroupedGemm& op) const {
  if (op.rows() == 0 || op.d.numel() == 0) return 0;
  const Gemm largest = op.of_expert(0, 0, op.rows());
  const size_t blocked = gemm_grouped_scratch(largest, kernels(), pool_.size());
  size_t small = 0;
  for (int64_t rows = 1; rows <= op.rows(); ++rows) {
    const Gemm few = op.of_expert(0, 0, rows);
    if (!gemm_is_small(few)) break;
    small = std::max(small, gemm_small_scratch(few));
  }
  return std::max(blocked, small);
}

void CpuOps::run(const GroupedGemm& op, void* scratch) {
  if (op.h) return in_parts(op, [&](const auto& part) { run(part, scratch); });
  const int32_t* offsets = op.offsets.as<int32_t>();
  int32_t before = 0;
  for (int64_t e = 0; e < op.experts(); ++e) {
    const int32_t begin = offsets[e], end = offsets[e + 1];
    if (begin != before || end < begin || end > op.rows())
      throw Error(cat(op.kName, ": expert ", e, " has rows ", begin, " to ", end, ", expected them to follow ", before,
                      " and to end within ", op.rows()));
    before = end;
    if (begin == end || op.d.numel() == 0) continue;
    const Gemm product = op.of_expert(e, begin, end);
    if (gemm_is_small(product))
      gemm_small(product, kernels(), pool_, scratch);
    else
      gemm_grouped(product, kernels(), pool_, scratch);
  }
}

}  // namespace athanor
