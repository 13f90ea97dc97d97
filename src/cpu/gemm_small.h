// GEMMs with few rows of d, as in decoding: b is read once, in place, at memory bandwidth.
#pragma once
#include "cpu/kernel.h"
#include "cpu/thread_pool.h"
#include "ops/gemm.h"

namespace athanor {

bool gemm_is_small(const Gemm&);
size_t gemm_small_scratch(const Gemm&);  // bytes
void gemm_small(const Gemm&, const Kernels&, ThreadPool&, void* scratch);

}  // namespace athanor
