// The program's own GEMM. All threads pack op(b) into panels; then micro-kernels compute tiles of d and read op(a) in
// place or packed into a buffer of the worker. Few rows of a times many rows of b in bf16 are computed as d^T, so
// that only a is packed. The order of sums depends on the shape and the instruction set alone, so d is bit-identical
// for any number of threads.
#pragma once
#include <span>

#include "cpu/kernel.h"
#include "cpu/thread_pool.h"
#include "ops/gemm.h"

namespace athanor {

size_t gemm_blocked_scratch(const Gemm&, const Kernels&, int threads);  // bytes
void gemm_blocked(const Gemm&, const Kernels&, ThreadPool&, void* scratch);

// GEMMs of a group run one after the other and share scratch memory. They differ from `largest` in having fewer rows of
// d or, with ta, a smaller K; K is not split into lanes. Vector kernels prefetch `next`, which the next GEMM reads.
size_t gemm_grouped_scratch(const Gemm& largest, const Kernels&, int threads);  // bytes
void gemm_grouped(const Gemm&, const Kernels&, ThreadPool&, std::span<const std::byte> next, void* scratch);

}  // namespace athanor
