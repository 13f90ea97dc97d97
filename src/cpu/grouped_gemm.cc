// Grouped GEMM: one GEMM per expert. The offsets of the experts' rows are read here, in host memory. Experts run
// concurrently, each on one thread, if that keeps all threads busy: within a GEMM threads wait for each other and read
// data that others wrote. Otherwise experts run one after the other, each on all threads. Both orders give the same
// bits: the blocking of a GEMM's sums depends on its own rows alone.
#include <algorithm>
#include <span>

#include "cpu/chunks.h"
#include "cpu/cpu_ops.h"
#include "cpu/gemm_blocked.h"
#include "cpu/gemm_small.h"

namespace athanor {
namespace {

// Scratch memory for the GEMM of any one expert on `threads` threads.
size_t scratch_of_one(const GroupedGemm& op, int threads) {
  size_t most = gemm_grouped_scratch(op.of_expert(0, 0, op.rows()), kernels(), threads);
  for (int64_t rows = 1; rows <= op.rows(); ++rows) {
    const Gemm few = op.of_expert(0, 0, rows);
    if (!gemm_is_small(few)) break;
    most = std::max(most, gemm_small_scratch(few));
  }
  return round_up<size_t>(most, 64);
}

void check_offsets(const GroupedGemm& op, const int32_t* offsets) {
  for (int64_t e = 0; e < op.experts(); ++e) {
    const int32_t begin = offsets[e], end = offsets[e + 1], before = e == 0 ? 0 : begin;
    if (begin != before || end < begin || end > op.rows())
      throw Error(cat(op.kName, ": expert ", e, " has rows ", begin, " to ", end, ", expected them to follow ", before,
                      " and to end within ", op.rows()));
  }
}

// Weights that the next expert reads; empty for gradients of weights, whose rows the CPU prefetches by itself.
std::span<const std::byte> next_weights(const GroupedGemm& op, int64_t e) {
  const int32_t* offsets = op.offsets.as<int32_t>();
  do {
    if (op.role == Grouped::weight_gradient || ++e == op.experts()) return {};
  } while (offsets[e] == offsets[e + 1]);
  const Tensor weights = op.of_expert(e, offsets[e], offsets[e + 1]).b;
  return {static_cast<const std::byte*>(weights.data), size_t(weights.numel()) * size_of(weights.dtype)};
}

void run_expert(const GroupedGemm& op, int64_t e, ThreadPool& pool, void* scratch) {
  const int32_t* rows = op.offsets.as<int32_t>() + e;
  if (rows[0] == rows[1]) return;
  const Gemm gemm = op.of_expert(e, rows[0], rows[1]);
  if (gemm_is_small(gemm))
    gemm_small(gemm, kernels(), pool, scratch);
  else
    gemm_grouped(gemm, kernels(), pool, next_weights(op, e), scratch);
}

}  // namespace

size_t CpuOps::scratch(const GroupedGemm& op) const {
  if (op.rows() == 0 || op.d.numel() == 0) return 0;
  const size_t together = scratch_of_one(op, pool_.size()), each = scratch_of_one(op, 1);
  return fit_side_by_side(each, pool_.size()) ? std::max(together, size_t(pool_.size()) * each) : together;
}

void CpuOps::run(const GroupedGemm& op, void* scratch) {
  if (op.h) return in_parts(op, [&](const auto& part) { run(part, scratch); });
  const int32_t* offsets = op.offsets.as<int32_t>();
  check_offsets(op, offsets);
  if (op.rows() == 0 || op.d.numel() == 0) return;
  const size_t one = scratch_of_one(op, 1);
  int64_t largest = 0;
  for (int64_t e = 0; e < op.experts(); ++e) largest = std::max<int64_t>(largest, offsets[e + 1] - offsets[e]);
  if (side_by_side(double(largest), double(offsets[op.experts()]), one, pool_.size()))
    return pool_.parallel_for(op.experts(), [&](int64_t e, int worker) {
      run_expert(op, e, alone_, static_cast<char*>(scratch) + size_t(worker) * one);
    });
  for (int64_t e = 0; e < op.experts(); ++e) run_expert(op, e, pool_, scratch);
}

}  // namespace athanor
