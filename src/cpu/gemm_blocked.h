// The program's own GEMM. All threads pack op(b) into panels; then micro-kernels compute tiles of d and read op(a) in
// place or packed into a buffer of the worker. All blocking depends only on shapes and the instruction set, so d is
// bit-identical for any number of threads.
#pragma once
#include <limits>

#include "cpu/kernel.h"
#include "cpu/thread_pool.h"
#include "ops/gemm.h"

namespace athanor {

// Blocking of one GEMM, after [Goto & van de Geijn 2008]. Sizes are in elements unless stated otherwise.
struct GemmBlocking {
  bool pairs;               // multiplies bf16 pairs
  bool direct_a;            // a is read in place
  bool amx;                 // multiplies in the tile unit
  int64_t kc, kcs;          // K of an inner block (one pass of the micro-kernel); number of inner blocks
  int64_t nb;               // columns of d per outer block
  int64_t tile_m, tile_n;   // rows and columns of d per chunk of work
  int64_t lanes;            // split-K for small d and large K: number of parts, whose sums are added in order
  int64_t step_kcs, steps;  // inner blocks per lane for which b is packed at a time; number of such steps
  int64_t group_kcs;        // inner blocks for which a is packed at a time
  bool staged;              // d's outer block is accumulated in f32 scratch memory, one copy per lane
  int64_t units;            // units of an inner block: kc, or kc / 2 for pairs
  bool transposed_a;        // op(a) = a^T is packed as rows of a_units units
  int64_t a_units;          // units between packed rows of op(a): units, or the next multiple of nr if transposed
  int64_t mr;               // rows of a micro-kernel
  int64_t b_panels;         // panels of b per outer block
  int64_t tile_rows;        // rows of a tile that are multiplied with all its panels of b before the next rows
  bool at_once;             // a tile's rows and panel are finished in one go
};
// most_lanes: maximum number of lanes that K is split into. The sums do not depend on `threads`.
GemmBlocking gemm_blocking(const Gemm&, const Kernels&, int threads,
                           int64_t most_lanes = std::numeric_limits<int64_t>::max());

size_t gemm_blocked_scratch(const Gemm&, const Kernels&, int threads);  // bytes
void gemm_blocked(const Gemm&, const Kernels&, ThreadPool&, void* scratch);

// GEMMs of a group run one after the other and share scratch memory. They differ from `largest` in having fewer rows of
// d or, with ta, a smaller K; K is not split into lanes.
size_t gemm_grouped_scratch(const Gemm& largest, const Kernels&, int threads);  // bytes
void gemm_grouped(const Gemm&, const Kernels&, ThreadPool&, void* scratch);

}  // namespace athanor
