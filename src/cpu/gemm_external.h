// GEMMs by a plug-in library: operands are converted to f32, d is cut into tiles that depend only on its shape, and
// each tile is one library call.
#pragma once
#include "cpu/gemm_plugin.h"
#include "cpu/thread_pool.h"
#include "ops/gemm.h"

namespace athanor {

size_t gemm_external_scratch(const Gemm&, int threads);  // bytes
void gemm_external(const Gemm&, const GemmPlugin&, ThreadPool&, void* scratch);

}  // namespace athanor
