// The program's own matrix product. op(b) is packed into panels by all threads; then tiles of d are computed by
// micro-kernels, which read op(a) in place or packed into a buffer of the worker's own. Every cut depends on shapes
// (and the instruction set) alone, so d has the same bits for any number of threads.
#pragma once
#include <limits>

#include "cpu/kernel.h"
#include "cpu/thread_pool.h"
#include "ops/gemm.h"

namespace athanor {

// How one product is cut; after [Goto & van de Geijn 2008]. Sizes in elements unless said otherwise.
struct GemmBlocking {
  bool pairs;               // products of bf16 pairs
  bool direct_a;            // a's rows are read in place
  int64_t kc, kcs;          // k per inner block (one pass of the micro-kernel), number of inner blocks
  int64_t nb;               // columns of d per outer block
  int64_t tile_m, tile_n;   // rows and columns of d per chunk of work
  int64_t lanes;            // k is cut in so many lanes that are summed at the end in order: small d, large k
  int64_t step_kcs, steps;  // inner blocks per lane for which b is packed at a time
  int64_t group_kcs;        // inner blocks for which a is held at a time
  bool staged;              // d's outer block is collected in f32 scratch memory, one copy per lane
  int64_t units;            // of an inner block: kc, or half of it for pairs
  int64_t b_panels;         // panels per outer block
};
// most_lanes: where more lanes than this would fill the threads, they are not cut.
GemmBlocking gemm_blocking(const Gemm&, const Kernels&, int64_t most_lanes = std::numeric_limits<int64_t>::max());

size_t gemm_blocked_scratch(const Gemm&, const Kernels&, int threads);  // bytes
void gemm_blocked(const Gemm&, const Kernels&, ThreadPool&, void* scratch);

// One of a group of products that use the same scratch memory after each other. They differ from `largest` in having
// fewer rows of d or, with ta, fewer terms of its sums; k is not cut in lanes.
size_t gemm_grouped_scratch(const Gemm& largest, const Kernels&, int threads);  // bytes
void gemm_grouped(const Gemm&, const Kernels&, ThreadPool&, void* scratch);

}  // namespace athanor
