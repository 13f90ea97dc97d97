// Assigns tiles of rows and heads to the blocks of attention by warpgroups. A block takes a tile and a run of heads:
// the visible rows of the tile are determined once for all of them, the first tiles of a head are copied while the
// previous head is computed, and results are stored while the next head is computed. Blocks start in order, tiles with
// the most work first. While many tiles are left, a block takes all heads of one; then runs become shorter, down to one
// head, so that all SMs finish at about the same time (guided self-scheduling [Polychronopoulos and Kuck 1987]). The
// schedule changes no result: each sum belongs to one head and row.
#pragma once
#include <algorithm>

#include "cuda/host_tools.h"
#include "cuda/warpgroups.h"
namespace athanor::cuda::attention {

struct Schedule {
  struct Run {
    int tile;       // position of the tile, most work first
    int head, end;  // heads [head, end)
  };
  static constexpr int kStages = 8;  // in stage i, 2^i blocks share the heads of a tile, at most one block per head
  int tiles, heads, blocks;
  int first_block[kStages], first_tile[kStages];

  __device__ __forceinline__ Run run(int block) const {
    int parts = 1, within = block, tile = 0;
#pragma unroll
    for (int i = 1; i < kStages; ++i)
      if (block >= first_block[i]) parts = 1 << i, within = block - first_block[i], tile = first_tile[i];
    parts = min(parts, heads);
    const int part = within % parts;
    return {tile + within / parts, part * heads / parts, (part + 1) * heads / parts};
  }
};

// Shares the heads of each tile among the fewest blocks with which the remaining tiles still give two blocks per SM.
inline Schedule schedule(int64_t rows, int rows_of_tile, int heads) {
  const int wanted = 2 * multiprocessors();
  Schedule s{.tiles = static_cast<int>(div_ceil<int64_t>(rows, rows_of_tile)), .heads = heads};
  int64_t blocks = 0;
  for (int i = 0, tile = 0; i < Schedule::kStages; ++i) {
    const int parts = std::min(1 << i, heads);
    // tiles that remain for later stages
    const int left = parts == heads || i == Schedule::kStages - 1 ? 0 : div_ceil(wanted, parts) - 1;
    s.first_block[i] = static_cast<int>(blocks), s.first_tile[i] = tile;
    const int here = std::max(0, s.tiles - tile - left);
    blocks += int64_t{here} * parts, tile += here;
    s.blocks = static_cast<int>(grid_size(blocks));
  }
  return s;
}
}  // namespace athanor::cuda::attention
