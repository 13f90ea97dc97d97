// Blocking, packing and tile order of the blocked GEMM.
#include "cpu/gemm_blocked.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/simd.h"

namespace athanor {
namespace {

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
  bool transposed;          // d^T is computed, with a and b exchanged
  bool at_once;             // a tile's rows and panel are finished in one go
};

// K depth of one micro-kernel pass in units: a panel of b then has kUnits x nr floats (AVX-512: 32 KiB) and stays in
// L1.
constexpr int64_t kUnits = 256;
constexpr int64_t kBlockColumns = 2048;                  // columns of an outer block
constexpr int64_t kPackedFloats = 4 << 20;               // packed b of one step: 16 MiB, a share of L3
constexpr int64_t kTileRowPanels = 8, kTileWidth = 512;  // size of the largest tile: its part of a stays in L2
constexpr int64_t kPackedTileWidth = 256;
constexpr int64_t kGroupFloats = 128 << 10;  // a tile's part of a: 512 KiB, half of a typical L2
constexpr int64_t kWantedTiles = 40;         // enough for 16 threads to finish together
constexpr int64_t kTilesPerThread = 20;      // for each thread but one, which needs no small tiles
constexpr int64_t kFewUnits = 64;            // units of K for which reading and writing d takes long
constexpr int64_t kLaneDepth = 512;          // minimum K per lane
// With AMX the start and end of a pass cost more than L1 saves: one pass covers all of K if possible, tiles are wide
// with their part of b in L2, and each tile reads its part of a once.
constexpr int64_t kAmxDepth = 16;           // units of K per instruction
constexpr int64_t kAmxUnits = 2048;         // maximum units of one pass with a in place
constexpr int64_t kAmxPackedUnits = 512;    // maximum with a packed, since a tile's part of a must stay in L2 as well
constexpr int64_t kAmxBFloats = 192 << 10;  // a tile's part of b: 768 KiB
constexpr int64_t kAmxGroupFloats = 64 << 10;  // a tile's part of a, if packed: 256 KiB
constexpr int64_t kAmxRowBlocks = 4;           // rows of a tile, in row blocks of the micro-kernel
constexpr int64_t kAmxTilesPerThread = 4;
// Part of b packed per chunk of work: columns of d (a multiple of every nr) by k.
constexpr int64_t kPackColumns = 384, kPackDepth = 64;

// Equal block sizes of at most `most` that are multiples of `unit`.
int64_t even_block(int64_t size, int64_t most, int64_t unit) {
  return round_up(div_ceil(size, div_ceil(size, most)), unit);
}

// a is read in place if it needs no conversion and its elements are whole units. From a^T a micro-kernel reads mr
// values per row: if mr is small, several micro-kernels read each cache line, which may have left L1 in between.
bool can_read_a(const Gemm& op, const Kernels& kern, bool pairs) {
  constexpr int kFewRows = 8;
  if (pairs) return !op.ta && op.a.stride() % 2 == 0 && op.k() % 2 == 0;
  return op.a.dtype == DType::f32 && !op.tf32 && !(op.ta && kern.mr < kFewRows);
}

void set_depth(GemmBlocking& g, int64_t k, int64_t kc, int64_t nr) {
  g.kc = kc;
  g.kcs = div_ceil(k, kc);
  g.units = kc / (g.pairs ? 2 : 1);
  g.a_units = g.transposed_a ? round_up(g.units, nr) : g.units;
}

// Tiles are cut until each thread has a few. This changes no sum: depth and lanes depend on the shape alone.
void block_for_amx(GemmBlocking& g, const Gemm& op, int64_t nr, int threads, int64_t most_lanes) {
  const int64_t k = op.k(), panels = g.b_panels, rows = div_ceil(op.m(), g.mr);
  const int64_t parts = kWantedTiles / (rows * div_ceil<int64_t>(panels, 2));
  const int64_t lanes = std::clamp<int64_t>(std::min({parts, k / kLaneDepth, most_lanes}), 1, k);
  const int64_t most = 2 * (g.direct_a ? kAmxUnits : kAmxPackedUnits);
  set_depth(g, k, even_block(k, std::min(most, div_ceil(k, lanes)), 2 * kAmxDepth), nr);
  g.lanes = std::min(lanes, g.kcs);
  int64_t wide = div_ceil(panels, div_ceil(panels, std::max<int64_t>(1, kAmxBFloats / (g.units * nr))));
  int64_t tall = std::clamp<int64_t>(g.direct_a ? rows : kAmxGroupFloats / (g.mr * g.a_units), 1, kAmxRowBlocks);
  const auto tiles = [&] { return div_ceil(rows, tall) * div_ceil(panels, wide); };
  while (tiles() < kAmxTilesPerThread * threads && (tall > 1 || (g.direct_a && wide > 1)))
    if (tall > 1)
      tall = div_ceil<int64_t>(tall, 2);
    else
      wide = div_ceil<int64_t>(wide, 2);
  g.tile_m = tall * g.mr;
  g.tile_n = wide * nr;
  g.tile_rows = g.mr;
}

// Halves the larger side of the tiles until there are enough of them for the threads. If a is packed, tiles stay wide,
// since their part of a is packed again for every tile in the same rows. Lanes depend on the shape alone. With a short
// K d is computed along its rows, which the CPU then prefetches.
void block_for_vectors(GemmBlocking& g, const Gemm& op, int64_t nr, int threads, int64_t most_lanes) {
  const int64_t m = op.m(), k = op.k();
  set_depth(g, k, even_block(k, kUnits * (g.pairs ? 2 : 1), 8), nr);
  int64_t tall = std::min(kTileRowPanels, div_ceil(m, g.mr)), wide = std::min(kTileWidth / nr, div_ceil(g.nb, nr));
  const int64_t narrow = g.direct_a ? 1 : std::min(kPackedTileWidth / nr, wide);
  const auto tiles = [&] { return div_ceil(m, tall * g.mr) * div_ceil(g.nb, wide * nr); };
  const auto cut = [&](int64_t wanted) {
    while (tiles() < wanted && (tall > 1 || wide > narrow)) {
      if (wide > narrow && (wide * nr > tall * g.mr || tall == 1))
        wide = std::max(div_ceil<int64_t>(wide, 2), narrow);
      else
        tall = div_ceil<int64_t>(tall, 2);
    }
  };
  cut(std::min<int64_t>(kWantedTiles, kTilesPerThread * (threads - 1)));
  g.tile_m = tall * g.mr;
  g.tile_rows = g.kcs == 1 && g.units <= kFewUnits ? g.mr : g.tile_m;
  g.tile_n = wide * nr;
  cut(kWantedTiles);
  g.lanes = std::clamp<int64_t>(std::min({kWantedTiles / tiles(), k / kLaneDepth, most_lanes}), 1, g.kcs);
}

// d = a b^T of few rows is computed as d^T = b a^T: the rows of b, which are more, are read in place, and only a is
// packed; both have the same sums. That pays if packing b costs more than packing a and transposing d. a is packed in
// one step.
bool computes_transposed(const Gemm& op, const Kernels& kern) {
  const auto is_bf16 = [](const Tensor& t) { return t.dtype == DType::bf16; };
  return kern.by_row_pairs && is_bf16(op.a) && is_bf16(op.b) && is_bf16(op.d) && !op.ta && op.tb && !op.bias &&
         !op.accumulate && !op.symmetric && op.b.stride() % 2 == 0 && op.k() % 2 == 0 &&
         op.m() * (op.n() + op.k()) < op.n() * op.k() && round_up<int64_t>(op.m(), kern.nr) * op.k() <= kPackedFloats;
}

// The GEMM of d^T, whose rows are the columns of d in memory.
Gemm transposed(Gemm op) {
  std::swap(op.a, op.b);
  op.d.row_stride = op.d.stride();
  op.d.shape = {op.n(), op.m()};
  return op;
}

// most_lanes: maximum number of lanes that K is split into. The sums do not depend on `threads`.
GemmBlocking gemm_blocking(const Gemm& op, const Kernels& kern, int threads, int64_t most_lanes) {
  GemmBlocking g{};
  g.pairs = kern.by_row_pairs && op.a.dtype == DType::bf16 && op.b.dtype == DType::bf16;
  g.amx = g.pairs && kern.amx;
  g.direct_a = can_read_a(op, kern, g.pairs);
  g.transposed_a = g.pairs && op.ta && !kern.by_column_pairs;
  g.mr = kern.max_rows(g.pairs);
  // Row blocks of a in place are about equal, since calls with few rows wait for their own sums.
  if (g.direct_a && !op.ta && !g.amx) g.mr = even_block(op.m(), g.mr, 1);
  g.nb = even_block(op.n(), kBlockColumns, kern.nr);
  g.b_panels = g.nb / kern.nr;
  if (g.amx)
    block_for_amx(g, op, kern.nr, threads, most_lanes);
  else
    block_for_vectors(g, op, kern.nr, threads, most_lanes);
  const int64_t lane_kcs = div_ceil(g.kcs, g.lanes), floats = g.lanes * g.units * g.nb;  // floats: per inner block
  g.steps = div_ceil(lane_kcs, std::clamp<int64_t>(kPackedFloats / floats, 1, lane_kcs));
  g.step_kcs = div_ceil(lane_kcs, g.steps);
  const int64_t group = g.amx ? kAmxGroupFloats : kGroupFloats;
  g.group_kcs = std::clamp<int64_t>(group / (g.tile_m * g.a_units), 1, g.step_kcs);
  g.staged = g.lanes > 1 || (g.steps > 1 && op.d.dtype != DType::f32);
  g.at_once = !g.staged && g.group_kcs >= g.kcs;
  return g;
}

struct BlockedGemm {
  Gemm op;  // the given GEMM or its transposed one
  GemmBlocking g;
};
BlockedGemm blocked_gemm(const Gemm& given, const Kernels& kern, int threads, int64_t most_lanes) {
  const bool transpose = computes_transposed(given, kern);
  const Gemm op = transpose ? transposed(given) : given;
  GemmBlocking g = gemm_blocking(op, kern, threads, most_lanes);
  g.transposed = transpose;
  return {op, g};
}

template <class T>
ATHANOR_CLONES void read_rows(float* dst, int64_t dst_stride, const T* src, int64_t src_stride, int64_t rows,
                              int64_t n) {
  for (int64_t i = 0; i < rows; ++i) load_row(dst + i * dst_stride, src + i * src_stride, n);
}
template <class T>
ATHANOR_CLONES void round_rows(T* dst, int64_t dst_stride, const float* src, int64_t src_stride, int64_t rows,
                               int64_t n) {
  for (int64_t i = 0; i < rows; ++i) store_row(dst + i * dst_stride, src + i * src_stride, n);
}
ATHANOR_CLONES void add_floats(float* sum, const float* x, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) sum[i] += x[i];
}

// Scratch memory in floats: packed b | if staged, d's outer block as panels of nr columns per lane | per worker: a
// tile's part of a, and the tile as panels, or with at_once one panel of its tile_rows.
struct Layout {
  int64_t b_size, staged_size, worker_size, a_size, c_size, total;
  Layout(const Gemm& op, const GemmBlocking& g, int nr, int threads) {
    constexpr int64_t kLine = 64;  // separates parts in different cache lines
    b_size = round_up(g.lanes * g.step_kcs * g.b_panels * nr * g.units, kLine);
    staged_size = g.staged ? round_up(g.lanes * g.b_panels * op.m() * nr, kLine) : 0;
    a_size = g.direct_a ? 0 : g.group_kcs * g.tile_m * g.a_units;
    const bool tile = !g.staged && op.d.dtype != DType::f32;
    c_size = !tile ? 0 : g.at_once ? g.tile_rows * nr : g.tile_m * g.tile_n;
    worker_size = round_up(a_size + c_size, kLine);
    total = b_size + staged_size + threads * worker_size;
  }
};

constexpr int64_t kMostNr = 64;  // a multiple of every nr

// One outer block of d: all rows, up to nb columns.
class Block {
 public:
  Block(const Gemm& op, const Kernels& kern, const GemmBlocking& g, const Layout& layout,
        std::span<const std::byte> next, float* scratch)
      : op_(op),
        kern_(kern),
        g_(g),
        layout_(layout),
        direct_d_(!g.staged && op.d.dtype == DType::f32),
        mr_(g.mr),
        nr_(kern.nr),
        next_(next),
        packed_b_(scratch),
        staged_(scratch + layout.b_size),
        workers_(staged_ + layout.staged_size),
        tiles_m_(div_ceil(op.m(), g.tile_m)) {
    const bool by_column = op.ta && !g.transposed_a;
    micros_ = kern.micros(by_column, g.pairs);
    micro_.a_stride = g.direct_a       ? op.a.stride() / (g.pairs ? 2 : 1)
                      : g.transposed_a ? kAmxDepth
                      : by_column      ? mr_
                                       : g.a_units;
    if (g.transposed_a) micro_.a_step = mr_ * kAmxDepth;
    a_next_ = !g.direct_a ? mr_ * g.a_units : by_column ? mr_ : mr_ * micro_.a_stride;
    micro_.b_stride = nr_;
    const double calls = double(div_ceil(op.m(), mr_)) * double(div_ceil(op.n(), nr_));
    next_per_unit_ = int64_t(std::ceil(double(next.size()) / (calls * double(units_of(op.k())))));
  }

  void run(ThreadPool& pool, int64_t col) {
    col_ = col, cols_ = std::min(g_.nb, op_.n() - col);
    tiles_n_ = div_ceil(cols_, g_.tile_n), tiles_ = tiles_m_ * tiles_n_;
    bands_ = std::min<int64_t>(pool.size(), tiles_m_);
    for (int64_t step = 0; step < g_.steps; ++step) run_step(pool, step);
    if (!g_.staged) return;
    pool.parallel_for(tiles_, [&](int64_t t) {
      const Tile tile = tile_at(t);
      for (int64_t j = 0; j < tile.cols; j += nr_) {
        if (rows_of(tile, j) == 0) continue;
        float* sum = staged_at(0, tile, j);
        for (int64_t lane = 1; lane < g_.lanes; ++lane)
          add_floats(sum, staged_at(lane, tile, j), rows_of(tile, j) * nr_);
        finish(tile, j, {sum, nr_});
      }
    });
  }

 private:
  struct Tile {
    int64_t row, rows, col, cols;  // columns within the block
  };
  // Each worker's share of the tiles is a band of rows, whose part of a stays in its core's caches, column by column.
  Tile tile_at(int64_t t) const {
    const int64_t band =
        ((t / tiles_n_ + 1) * bands_ - 1) / tiles_m_;  // the band has rows [first, first + tall) of tiles
    const int64_t first = tiles_m_ * band / bands_, tall = tiles_m_ * (band + 1) / bands_ - first;
    const int64_t in_band = t - first * tiles_n_;
    const int64_t i = (first + in_band % tall) * g_.tile_m, j = in_band / tall * g_.tile_n;
    return {i, std::min(g_.tile_m, op_.m() - i), j, std::min(g_.tile_n, cols_ - j)};
  }

  // Number of rows to compute of a tile's panel at column j; a symmetric d omits rows entirely below the diagonal.
  int64_t rows_of(const Tile& tile, int64_t j) const {
    if (!op_.symmetric) return tile.rows;
    const int64_t end = col_ + tile.col + std::min(j + nr_, tile.cols);
    return std::clamp<int64_t>(end - tile.row, 0, tile.rows);
  }

  // Inner blocks [first, last) of a lane in a step.
  struct Range {
    int64_t first, last;
  };
  Range kcs_of(int64_t lane, int64_t step) const {
    const int64_t begin = g_.kcs * lane / g_.lanes, end = g_.kcs * (lane + 1) / g_.lanes;
    return {std::min(begin + step * g_.step_kcs, end), std::min(begin + (step + 1) * g_.step_kcs, end)};
  }
  int64_t depth(int64_t kc) const { return std::min(g_.kc, op_.k() - kc * g_.kc); }  // K of an inner block
  int64_t units_of(int64_t k) const { return g_.pairs ? div_ceil<int64_t>(k, 2) : k; }
  float* staged_at(int64_t lane, const Tile& tile, int64_t j) const {
    return staged_ + ((lane * g_.b_panels + (tile.col + j) / nr_) * op_.m() + tile.row) * nr_;
  }
  float* b_at(int64_t slot, int64_t panel) const { return packed_b_ + (slot * g_.b_panels + panel) * nr_ * g_.units; }

  // Packing and tiles of a step are the two stages of one parallel loop: tiles wait until everything is packed, so that
  // a thread that has finished packing need not join the others first.
  void run_step(ThreadPool& pool, int64_t step) {
    const int64_t depths = div_ceil(g_.kc, kPackDepth), per_kc = div_ceil(cols_, kPackColumns) * depths;
    const int64_t packs = g_.lanes * g_.step_kcs * per_kc;
    std::atomic<int64_t> packed{0};
    pool.parallel_stages(packs, g_.lanes * tiles_, [&](int64_t chunk, int worker) {
      if (chunk < packs) {
        const int64_t slot = chunk / per_kc, part = chunk % per_kc;
        const Range range = kcs_of(slot / g_.step_kcs, step);
        const int64_t kc = range.first + slot % g_.step_kcs;
        if (kc < range.last) pack_b(slot, kc, part % depths * kPackDepth, part / depths * kPackColumns);
        packed.fetch_add(1, std::memory_order_release);
      } else {
        while (packed.load(std::memory_order_acquire) < packs) std::this_thread::yield();
        run_tile((chunk - packs) / tiles_, step, tile_at((chunk - packs) % tiles_), worker);
      }
    });
  }

  // Packs kPackDepth values of k, starting at `k` of inner block kc, for kPackColumns columns, starting at `col` of the
  // block.
  void pack_b(int64_t slot, int64_t kc, int64_t k, int64_t col) const {
    const int64_t deep = std::min(kPackDepth, depth(kc) - k), end = std::min(col + kPackColumns, cols_);
    if (deep <= 0) return;
    const Source b{op_.b.data, op_.b.stride(), op_.b.dtype, op_.tf32};
    float* to = b_at(slot, col / nr_) + units_of(k) * nr_;
    if (!op_.tb)
      return kern_.pack_columns(to, nr_ * g_.units, kern_.nr, b, kc * g_.kc + k, deep, col_ + col, end - col, g_.pairs);
    for (; col < end; col += nr_, to += nr_ * g_.units)
      kern_.pack_transposed(to, b, col_ + col, std::min(nr_, end - col), kc * g_.kc + k, deep, g_.pairs);
  }

  // Rows that are multiplied with all panels of their tile, and a group of inner blocks of a lane.
  struct Part {
    Tile tile;  // these rows
    int64_t lane;
    Range group;
    bool starts, ends;   // whether the lane's sums start, or those of the step end, with the group
    int64_t slot;        // of the group's first inner block in packed b
    const float* a;      // packed
    float* sums;         // the worker's memory
    int64_t ahead_step;  // of Micro
    const char* next;    // position in next_
  };

  // Memory that accumulates a part's panel at column j: d itself, the staged copy or the worker's memory.
  struct Collector {
    float* c;
    int64_t stride;
  };
  Collector collector(const Part& p, int64_t j) const {
    if (direct_d_) return {op_.d.as<float>() + p.tile.row * op_.d.stride() + col_ + p.tile.col + j, op_.d.stride()};
    if (g_.staged) return {staged_at(p.lane, p.tile, j), nr_};
    return {g_.at_once ? p.sums : p.sums + j * g_.tile_m, nr_};
  }

  // Start of a tile's share of next_.
  const char* next_at(const Tile& tile) const {
    if (next_.empty()) return static_cast<const char*>(op_.b.data);  // prefetched in vain, once
    const double done = (double(col_ + tile.col) * double(op_.m()) + double(tile.row) * double(tile.cols)) /
                        (double(op_.m()) * double(op_.n()));
    return reinterpret_cast<const char*>(next_.data()) + int64_t(done * double(next_.size()));
  }

  // Processes a few inner blocks at a time, as many as keep their part of a in L2: every panel of b is multiplied with
  // all of them, so that its part of d stays in L1.
  void run_tile(int64_t lane, int64_t step, const Tile& tile, int worker) const {
    float *packed_a = workers_ + worker * layout_.worker_size, *sums = packed_a + layout_.a_size;
    const Range range = kcs_of(lane, step);
    Part part{.lane = lane, .next = next_at(tile)};
    for (int64_t first = range.first; first < range.last; first += g_.group_kcs) {
      const Range group{first, std::min(first + g_.group_kcs, range.last)};
      if (!g_.direct_a)
        for (int64_t kc = group.first; kc < group.last; ++kc)
          pack_a(kc, tile, packed_a + (kc - first) * g_.tile_m * g_.a_units);
      part.group = group, part.slot = lane * g_.step_kcs + first - range.first;
      part.starts = step == 0 && first == range.first, part.ends = group.last == range.last;
      for (int64_t i = 0; i < tile.rows; i += g_.tile_rows) {
        part.tile = {tile.row + i, std::min(g_.tile_rows, tile.rows - i), tile.col, tile.cols};
        part.a = packed_a + i * g_.a_units, part.sums = g_.at_once ? sums : sums + i * nr_;
        part.ahead_step = div_ceil(nr_ * mr_, part.tile.rows);
        for (int64_t j = 0, panel = tile.col / nr_; j < tile.cols; j += nr_, ++panel)
          if (rows_of(part.tile, j) > 0) run_panels(part, j, panel);
      }
    }
    if (kern_.release) kern_.release();
  }

  // One panel of b, at column j of the tile: all inner blocks of the group.
  void run_panels(Part& p, int64_t j, int64_t panel) const {
    const Collector sum = collector(p, j);
    bool add = p.starts ? p.lane == 0 && start(p.tile, j, sum) : true;
    int64_t slot = p.slot;
    for (int64_t kc = p.group.first; kc < p.group.last; ++kc, ++slot, add = true) {
      const float* ahead = kc + 1 == p.group.last ? b_at(p.slot, panel + 1) : b_at(slot + 1, panel);
      const float* a = g_.direct_a ? a_in_place(kc, p.tile) : p.a + (kc - p.group.first) * g_.tile_m * g_.a_units;
      run_panel(p, a, b_at(slot, panel), ahead, units_of(depth(kc)), j, sum, add);
    }
    if (!direct_d_ && !g_.staged && p.ends) finish(p.tile, j, sum);
  }

  // Multiplies one panel of b with the part's rows of a, and prefetches the next panel.
  void run_panel(Part& p, const float* a, const float* b, const float* ahead, int64_t units, int64_t j, Collector sum,
                 bool add) const {
    Micro micro = micro_;
    micro.a = a, micro.b = b, micro.c = sum.c;
    micro.c_stride = sum.stride, micro.n = std::min(nr_, p.tile.cols - j);
    micro.k = units, micro.add = add;
    micro.ahead = ahead, micro.ahead_step = p.ahead_step;
    micro.next = p.next, micro.next_step = next_per_unit_;
    if (g_.amx) {
      micro.read_ahead = a_ahead(a, p.tile, j);
      micro.write_ahead = d_ahead(p.tile, j);
    }
    for (int64_t rows = rows_of(p.tile, j); rows > 0; rows -= mr_) {
      micros_[std::min(mr_, rows) - 1](micro);
      micro.a += a_next_, micro.c += mr_ * sum.stride;
      micro.ahead += p.ahead_step * units, micro.next += next_per_unit_ * units;
    }
    p.next = micro.next;
  }

  // Rows that an AMX kernel prefetches at column j of a tile: its share of the next rows of a.
  Micro::Rows a_ahead(const float* a, const Tile& tile, int64_t j) const {
    if (!g_.direct_a || tile.row + tile.rows + mr_ > op_.m()) return {};
    constexpr int64_t kMostRows = 8;  // more would occupy all line fill buffers of L1
    const int64_t stride = op_.a.stride() * 2, each = std::min(div_ceil(mr_, div_ceil(tile.cols, nr_)), kMostRows);
    const int64_t first = j / nr_ * each;
    return {reinterpret_cast<const char*>(a) + (mr_ + first) * stride, stride,
            std::clamp<int64_t>(mr_ - first, 0, each), 1};
  }
  // The kernel also prefetches the next panel of d, if d is written while the tile is computed.
  Micro::Rows d_ahead(const Tile& tile, int64_t j) const {
    if (g_.transposed || !(direct_d_ || g_.at_once) || j + nr_ >= tile.cols) return {};
    const int64_t bytes = int64_t(size_of(op_.d.dtype));
    return {static_cast<const char*>(op_.d.at(tile.row * op_.d.stride() + col_ + tile.col + j + nr_)),
            op_.d.stride() * bytes, tile.rows, nr_ * bytes / 64};
  }
  const float* a_in_place(int64_t kc, const Tile& tile) const {
    const int64_t row = op_.ta ? kc * g_.kc : tile.row, col = op_.ta ? tile.row : kc * g_.kc;
    return static_cast<const float*>(op_.a.at(row * op_.a.stride() + col));
  }
  void pack_a(int64_t kc, const Tile& tile, float* to) const {
    const Source a{op_.a.data, op_.a.stride(), op_.a.dtype, op_.tf32};
    const int64_t k = kc * g_.kc, deep = depth(kc);
    if (g_.transposed_a)
      kern_.pack_tiles(to, mr_ * g_.a_units, a, k, deep, tile.row, tile.rows);
    else if (op_.ta)
      kern_.pack_columns(to, mr_ * g_.a_units, int(mr_), a, k, deep, tile.row, tile.rows, g_.pairs);
    else
      kern_.pack_rows(to, g_.a_units, a, tile.row, tile.rows, k, deep, g_.pairs);
  }

  // Initializes the collector with the bias or the previous d; returns false if there is nothing to add to.
  bool start(const Tile& tile, int64_t j, Collector sum) const {
    const int64_t cols = std::min(nr_, tile.cols - j), col = col_ + tile.col + j;
    if (op_.bias)
      by_float(op_.bias.dtype,
               [&]<class T>() { read_rows(sum.c, sum.stride, op_.bias.as<T>() + col, 0, tile.rows, cols); });
    if (op_.accumulate && !direct_d_)
      by_float(op_.d.dtype, [&]<class T>() {
        const T* d = op_.d.as<T>() + tile.row * op_.d.stride() + col;
        read_rows(sum.c, sum.stride, d, op_.d.stride(), tile.rows, cols);
      });
    return op_.bias || op_.accumulate;
  }

  void finish(const Tile& tile, int64_t j, Collector sum) const {
    if (g_.transposed) return finish_transposed(tile, j, sum);
    if (kern_.round_rows && op_.d.dtype == DType::bf16 && op_.d.stride() % 2 == 0 && tile.cols - j >= nr_) {
      void* d = op_.d.at(tile.row * op_.d.stride() + col_ + tile.col + j);
      return kern_.round_rows(static_cast<float*>(d), op_.d.stride() / 2, sum.c, sum.stride, rows_of(tile, j), nr_);
    }
    by_float(op_.d.dtype, [&]<class T>() {
      T* d = op_.d.as<T>() + tile.row * op_.d.stride() + col_ + tile.col + j;
      round_rows(d, op_.d.stride(), sum.c, sum.stride, rows_of(tile, j), std::min(nr_, tile.cols - j));
    });
  }

  // Writes a panel of d^T to d. The last columns of a block of rows may be zeros that belong to no row.
  void finish_transposed(const Tile& tile, int64_t j, Collector sum) const {
    const int64_t columns = std::min(nr_, tile.cols - j);
    for (int64_t i = 0; i < tile.rows; i += nr_) {
      alignas(64) float block[kMostNr * kMostNr];
      const int64_t rows = std::min(nr_, tile.rows - i);
      kern_.transpose(block, nr_, sum.c + i * sum.stride, sum.stride, rows, columns);
      bf16* d = op_.d.as<bf16>() + (col_ + tile.col + j) * op_.d.stride() + tile.row + i;
      if (rows == nr_ && op_.d.stride() % 2 == 0)
        kern_.round_rows(reinterpret_cast<float*>(d), op_.d.stride() / 2, block, nr_, columns, nr_);
      else
        round_rows(d, op_.d.stride(), block, nr_, columns, rows);
    }
  }

  const Gemm& op_;
  const Kernels& kern_;
  const GemmBlocking& g_;
  const Layout& layout_;
  const bool direct_d_;
  const int64_t mr_, nr_;
  const std::span<const std::byte> next_;
  const Kernels::MicroFn* micros_;
  Micro micro_{};              // what all calls have in common
  int64_t a_next_;             // units between row blocks of a
  int64_t next_per_unit_ = 0;  // bytes of next_ to prefetch per unit
  float *packed_b_, *staged_, *workers_;
  int64_t tiles_m_, tiles_n_ = 0, tiles_ = 0, bands_ = 0;  // number of tiles of a block, and of bands of its rows
  int64_t col_ = 0, cols_ = 0;                             // columns of the current block
};

// Copies the upper triangle to the lower one: blocks through f32, which holds every value of T, blocks at the diagonal
// element by element.
template <class T>
void copy_triangle(ThreadPool& pool, const Kernels& kern, const Tensor& d) {
  const int64_t n = d.rows(), stride = d.stride();
  T* x = d.as<T>();
  pool.parallel_ranges(n, kMostNr, [&](int64_t begin, int64_t end) {
    for (int64_t j = 0; j < begin; j += kern.nr) {
      alignas(64) float block[kMostNr * kMostNr];
      kern.pack_transposed(block, {d.data, stride, d.dtype, false}, j, kern.nr, begin, end - begin, false);
      round_rows(x + begin * stride + j, stride, block, kern.nr, end - begin, kern.nr);
    }
    for (int64_t i = begin; i < end; ++i)
      for (int64_t j = begin; j < i; ++j) x[i * stride + j] = x[j * stride + i];
  });
}

void run_blocks(const Gemm& given, const Kernels& kern, int64_t most_lanes, ThreadPool& pool,
                std::span<const std::byte> next, void* scratch) {
  const BlockedGemm blocked = blocked_gemm(given, kern, pool.size(), most_lanes);
  const Gemm& op = blocked.op;
  const GemmBlocking& g = blocked.g;
  const Layout layout(op, g, kern.nr, pool.size());
  Block block(op, kern, g, layout, next, static_cast<float*>(scratch));
  for (int64_t col = 0; col < op.n(); col += g.nb) block.run(pool, col);
  if (op.symmetric) by_float(op.d.dtype, [&]<class T>() { copy_triangle<T>(pool, kern, op.d); });
}

constexpr int64_t kAnyLanes = std::numeric_limits<int64_t>::max();

}  // namespace

size_t gemm_blocked_scratch(const Gemm& given, const Kernels& kern, int threads) {
  const BlockedGemm blocked = blocked_gemm(given, kern, threads, kAnyLanes);
  return size_t(Layout(blocked.op, blocked.g, kern.nr, threads).total) * sizeof(float);
}

void gemm_blocked(const Gemm& op, const Kernels& kern, ThreadPool& pool, void* scratch) {
  run_blocks(op, kern, kAnyLanes, pool, {}, scratch);
}

// An upper bound of Layout's scratch memory for any GEMM of the group: its tiles are no larger than those of `largest`,
// and the packed part of b, or of a if d^T is computed, has at most the columns of `largest` and covers all of K or one
// step of it.
size_t gemm_grouped_scratch(const Gemm& largest, const Kernels& kern, int threads) {
  const GemmBlocking g = gemm_blocking(largest, kern, threads, 1);
  const int64_t columns = round_up<int64_t>(std::min(largest.n(), kBlockColumns), kern.nr);
  const int64_t tile_m = kTileRowPanels * std::max(kern.mr, kern.mr_pairs);
  const int64_t unit = kUnits + 8, a_unit = round_up<int64_t>(unit, kern.nr);
  const int64_t terms =
      largest.k() + 8 * div_ceil(largest.k(), kUnits) + 8;  // K, with inner blocks rounded up to multiples of 8
  const int64_t packed = std::min(terms * columns, std::max(kPackedFloats, unit * columns));
  const int64_t of_a = std::max(kGroupFloats, tile_m * a_unit), tile = tile_m * (kTileWidth + kern.nr);
  // Whether d is collected in f32 depends on K, which only differs within a group with ta.
  const bool staged = largest.ta ? largest.d.dtype != DType::f32 : g.staged;
  constexpr int64_t kLine = 64;
  return size_t(packed + (staged ? largest.m() * columns : 0) + threads * (of_a + tile + kLine) + 2 * kLine) *
         sizeof(float);
}

void gemm_grouped(const Gemm& op, const Kernels& kern, ThreadPool& pool, std::span<const std::byte> next,
                  void* scratch) {
  run_blocks(op, kern, 1, pool, next, scratch);
}

}  // namespace athanor
