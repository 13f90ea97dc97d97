// GEMMs by a plug-in library: operands as f32, d cut into tiles that depend only on its shape, one library call per
// tile.
#pragma once
#include "cpu/gemm_plugin.h"
#include "cpu/thread_pool.h"
#include "ops/gemm.h"

namespace athanor {

size_t gemm_external_scratch(const Gemm&, int threads);  // bytes
void gemm_external(const Gemm&, const GemmPlugin&, ThreadPool&, void* scratch);

}  // namespace athanor
