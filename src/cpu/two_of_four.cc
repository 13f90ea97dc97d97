// 2:4 sparsity of weights.
#include <bit>

#include "cpu/chunks.h"
#include "cpu/cpu_ops.h"
#include "cpu/update.h"

namespace athanor {
namespace {

// Calls fn(i, kept) for every element of every group.
template <class T, class Fn>
void for_each_of_groups(ThreadPool& pool, const T* x, int64_t n, const Fn& fn) {
  static_assert(kChunkElements % kSparseGroup == 0);
  pool.parallel_ranges(n, kChunkElements, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; at += kSparseGroup) {
      uint32_t magnitudes[kSparseGroup];
      for (int64_t i = 0; i < kSparseGroup; ++i)
        magnitudes[i] = bf16_magnitude(std::bit_cast<uint32_t>(to_float(x[at + i])));
      for (int64_t i = 0; i < kSparseGroup; ++i) fn(at + i, is_kept(magnitudes, int(i)));
    }
  });
}

}  // namespace

void CpuOps::run(const KeepTwoOfFour& op, void*) {
  by_float(op.x.dtype, [&]<class T>() {
    const T* x = op.x.as<T>();
    T* y = op.y.as<T>();
    for_each_of_groups(pool_, x, op.x.numel(), [&](int64_t i, bool kept) { y[i] = kept ? x[i] : T{}; });
  });
}

void CpuOps::run(const DecayPruned& op, void*) {
  const float factor = pruned_decay(op.decay, update::state_of(op.state));
  if (factor == 0) return;
  by_float(op.w.dtype, [&]<class T>() {
    by_float(op.grad.dtype, [&]<class G>() {
      const T* w = op.w.as<T>();
      G* grad = op.grad.as<G>();
      for_each_of_groups(pool_, w, op.w.numel(), [&](int64_t i, bool kept) {
        if (!kept) grad[i] = from_float<G>(to_float(grad[i]) + factor * to_float(w[i]));
      });
    });
  });
}

}  // namespace athanor
