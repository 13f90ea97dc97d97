// Quantizes to FP8 and FP4 (Quantize).
// Layout: x row-major and contiguous; a thread block has 256 columns and a band of rows: as many rows as share scales,
// else 64. A lane has 8 columns, a warp one eighth of the band. Kernels that write transposed values use tiles of 128
// by 128. Per-row scales use quantize_rows.cu if rows fit in shared memory. Memory bound: x is read twice, the second
// time from L2 if it fits; once if the factor or amax is given, or if 128 rows of a tile share scales. Quantized values
// are written once. Deterministic: a maximum does not depend on the order, counts are integers. Not timed on a GPU yet.
#include "cuda/quantize/quantize.h"

#include <bit>

#include "base/rng.h"
#include "cuda/kernels.h"
#include "cuda/quantize/quantize_cut.h"
#include "cuda/reduce.h"

namespace athanor::cuda {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * kLanes;
constexpr int kTileColumns = kLanes * kElements;
constexpr int kBandRows = 64;  // used if a single row or all rows share scales

Cut cut_of(const Quantize& op) {
  Cut c{.rows = op.x.rows(),
        .columns = checked_columns(op.kName, op.x),
        .height = static_cast<int>(op.blocks.rows),
        .width = static_cast<int>(op.blocks.cols),
        .across = static_cast<int>(op.blocks.grid(op.x.shape)[1]),
        .band = op.blocks.rows > 1 ? static_cast<int>(op.blocks.rows) : kBandRows,
        .tiles = static_cast<int>(div_ceil<int64_t>(op.x.cols(), kTileColumns)),
        .vectors = false};
  const bool rows = op.blocks.rows <= 1 || op.blocks.rows % kWarps == 0;
  const bool columns = op.blocks.cols == 0 || (op.blocks.cols == 1 && op.blocks.rows != 1) ||
                       (op.blocks.cols % kElements == 0 && kTileColumns % op.blocks.cols == 0 &&
                        std::has_single_bit(static_cast<uint64_t>(op.blocks.cols)));
  CHECK(rows && columns, "quantize: blocks of ", op.blocks.rows, " x ", op.blocks.cols, " have no CUDA kernel");
  return c;
}
// Whether several thread blocks share a scale.
bool shared(const Cut& c) { return c.height == 0 || c.width == 0; }

// This thread's part of its tile.
struct Place {
  int64_t band, first;  // number of the band; this warp's first row
  int rows;             // rows of this warp, without those past the end
  int column, lane, warp;
  __device__ __forceinline__ explicit Place(const Cut& c)
      : band(blockIdx.x / c.tiles),
        lane(static_cast<int>(threadIdx.x) % kLanes),
        warp(static_cast<int>(threadIdx.x) / kLanes) {
    column = static_cast<int>(blockIdx.x % c.tiles) * kTileColumns + lane * kElements;
    const int each = c.band / kWarps;
    first = band * c.band + warp * each;
    const int64_t left = c.rows - first;
    rows = left < 0 ? 0 : left < each ? static_cast<int>(left) : each;
  }
  __device__ __forceinline__ int64_t block_row(const Cut& c, int64_t row) const {
    return c.height == 0 ? 0 : c.height == 1 ? row : band;
  }
};

// Loads this thread's rows from the i-th on; 0 past the end.
constexpr int kInFlight = 4;
template <class T>
__device__ __forceinline__ void load(float (&v)[kInFlight][kElements], const Matrix<T>& x, const Cut& c,
                                     const Place& at, int i) {
#pragma unroll
  for (int r = 0; r < kInFlight; ++r)
    x.load(v[r], at.first + i + r, at.column, c, i + r < at.rows && at.column < c.columns);
}
__device__ __forceinline__ void keep(uint32_t* most, uint32_t value, bool shared) {
  if (shared) {
    atomicMax(most, value);
  } else {
    *most = value;
  }
}

// most[block] = amax of the scale block, as float bits; must be zero before if thread blocks share scales. Does nothing
// if a factor is given.
template <class T>
__global__ void __launch_bounds__(kThreads)
    find_most(uint32_t* most, const Matrix<T> x, const Cut c, bool is_shared, const float* given) {
  ptx::wait_for_earlier_kernels();
  SHARED(uint32_t, smem, [kWarps * kTileColumns]);
  if (given && *given > 0) return;
  const Place at(c);
  const bool leads = c.width == 0 ? at.lane == 0 : at.column % c.width == 0;
  uint32_t columns[kElements] = {};
  for (int i = 0; i < at.rows; i += kInFlight) {
    float v[kInFlight][kElements];
    load(v, x, c, at, i);
#pragma unroll
    for (int r = 0; r < kInFlight; ++r) {
      uint32_t row = 0;
#pragma unroll
      for (int k = 0; k < kElements; ++k) {
        const uint32_t m = magnitude(v[r][k]);
        columns[k] = Max{}(columns[k], m);
        row = Max{}(row, m);
      }
      if (c.height != 1) continue;
      row = over_lanes(row, c.width);
      if (leads && at.column < c.columns && i + r < at.rows)
        keep(most + (at.first + i + r) * c.across + (c.width ? at.column / c.width : 0), row, is_shared);
    }
  }
  if (c.height == 1) return;
  const int64_t row_of_blocks = c.height == 0 ? 0 : at.band;
  if (c.width == 1) {  // each thread reduces one column
#pragma unroll
    for (int k = 0; k < kElements; ++k) smem[at.warp * kTileColumns + k * kLanes + at.lane] = columns[k];
    __syncthreads();
    const int k = at.warp, column = at.column + k;
    uint32_t all = 0;
    for (int w = 0; w < kWarps; ++w) all = Max{}(all, smem[w * kTileColumns + k * kLanes + at.lane]);
    if (column < c.columns) keep(most + row_of_blocks * c.across + column, all, is_shared);
    return;
  }
  uint32_t mine = 0;
#pragma unroll
  for (int k = 0; k < kElements; ++k) mine = Max{}(mine, columns[k]);
  smem[threadIdx.x] = over_lanes(mine, c.width);
  __syncthreads();
  if (at.warp != 0 || !leads || at.column >= c.columns) return;
  uint32_t all = 0;
  for (int w = 0; w < kWarps; ++w) all = Max{}(all, smem[w * kLanes + at.lane]);
  keep(most + row_of_blocks * c.across + (c.width ? at.column / c.width : 0), all, is_shared);
}

__device__ __forceinline__ void store_words(uint8_t* row, uint32_t low, uint32_t high, const Cut& c, int column) {
  if (c.vectors && column < c.columns) return st8(row + column, {low, high});
#pragma unroll
  for (int k = 0; k < kElements; ++k) {
    if (column + k < c.columns) row[column + k] = static_cast<uint8_t>((k < 4 ? low : high) >> 8 * (k % 4));
  }
}
__device__ __forceinline__ void store_quantized(uint8_t* row, const float (&v)[kElements], const Cut& c, int column,
                                                bool e5m2) {
  const uint2 words = code_words(v, e5m2);
  store_words(row, words.x, words.y, c, column);
}

// Writes quantized values, and the scale of each block that starts here. With a given factor it also raises most[0],
// which was 0, to the amax of x.
template <class T>
__global__ void __launch_bounds__(kThreads)
    encode(uint8_t* quantized, void* scales, uint32_t* most, const Matrix<T> x, const Cut c, const Rule rule) {
  ptx::wait_for_earlier_kernels();
  const Place at(c);
  const bool given = rule.given && *rule.given > 0, inside = at.column < c.columns;
  const bool first = c.width <= 1 ? at.column == 0 : at.column % c.width == 0;
  uint32_t amax = 0;
  float factors[kElements];
  const auto of_row = [&](int64_t row, bool writes) {
    const int64_t block = at.block_row(c, row) * c.across + (c.width ? at.column / c.width : 0);
    const Scaled s = given ? Scaled{*rule.given, 0.f} : scaled(most[block], rule);
#pragma unroll
    for (float& f : factors) f = s.factor;
    if (writes && first && !rule.given) store_scale(scales, block, s.scale, rule.e8m0);
  };
  const bool writes = at.warp == 0 && (c.height != 0 || at.band == 0);  // writes scales that several rows share
  if (inside && c.width == 1) {
    const int64_t block = at.block_row(c, 0) * c.across + at.column;
#pragma unroll
    for (int k = 0; k < kElements; ++k) {
      const Scaled s = scaled(at.column + k < c.columns ? most[block + k] : 0, rule);
      factors[k] = s.factor;
      if (writes && at.column + k < c.columns) store_scale(scales, block + k, s.scale, rule.e8m0);
    }
  } else if (inside && c.height != 1) {
    of_row(0, writes);
  }
  for (int i = 0; inside && i < at.rows; i += kInFlight) {
    float v[kInFlight][kElements];
    load(v, x, c, at, i);
#pragma unroll
    for (int r = 0; r < kInFlight; ++r) {
      const int64_t row = at.first + i + r;
      if (i + r >= at.rows) continue;
      if (c.height == 1) of_row(row, true);
#pragma unroll
      for (int k = 0; k < kElements; ++k) {
        if (given) amax = Max{}(amax, magnitude(v[r][k]));
        v[r][k] = __fmul_rn(v[r][k], factors[k]);
      }
      store_quantized(quantized + row * c.columns, v[r], c, at.column, rule.e5m2);
    }
  }
  if (!given) return;
  amax = warp_reduce(amax, Max{});
  if (at.lane == 0) atomicMax(most, amax);
}

// Delayed scaling: writes the scale for a given factor, and raises rule.amax, which several matrices share.
__global__ void finish_delayed(float* scale, const uint32_t* most, const Rule rule) {
  ptx::wait_for_earlier_kernels();
  const bool given = rule.given && *rule.given > 0, finite = *most < kInfinity;
  if (!given) {
    *scale = scaled(*most, rule).scale;
  } else {
    *scale = finite ? __fdiv_rn(1.f, *rule.given) : __uint_as_float(kNan);
  }
  if (!rule.amax) return;
  const float now = __uint_as_float(*most), before = *rule.amax;
  *rule.amax = finite ? (now > before ? now : before) : __uint_as_float(kInfinity);
}

// ---- transposed output

constexpr int kSide = 128;  // side of a tile; a scale covers at most that many elements along K, or all
constexpr int kSquares = kSide / kElements;  // squares of 8 by 8 elements along a side; a thread has one square
constexpr int kSmem = kSide + kSquares;      // words per row of maxima in shared memory
static_assert(kSquares * kSquares == kThreads);

struct TransposedOutput {
  bool of_columns, of_tiles;  // one scale per column; one per 128 rows of a column, whose amax this kernel computes
  bool vectors;               // rows of transposed values can be stored 8 at a time
  float* scales;              // scales of the non-transposed output; null, or one per 128 elements of a row
};

// Transposes a 4 x 4 matrix of bytes, which has one row per word.
__device__ __forceinline__ void transpose_4(uint32_t (&w)[4]) {
  const uint32_t low = __byte_perm(w[0], w[1], 0x5140), low2 = __byte_perm(w[2], w[3], 0x5140);
  const uint32_t high = __byte_perm(w[0], w[1], 0x7362), high2 = __byte_perm(w[2], w[3], 0x7362);
  w[0] = __byte_perm(low, low2, 0x5410), w[1] = __byte_perm(low, low2, 0x7632);
  w[2] = __byte_perm(high, high2, 0x5410), w[3] = __byte_perm(high, high2, 0x7632);
}

// One thread block per tile, whose elements stay in registers between the amax and quantization; a thread has 8
// elements of each of 8 rows. transposed [C, R]: transposed values, with scales [C, blocks]. quantized: null, or the
// non-transposed values, with the same per-tensor scale or with how.scales. Groups of 8 values are swizzled in shared
// memory, so that threads which write, or read, together use different banks.
template <class T>
__global__ void __launch_bounds__(kThreads, sizeof(T) == 2 ? 2 : 1)
    encode_transposed(uint8_t* transposed, uint8_t* quantized, float* scales, uint32_t* most, const Matrix<T> x,
                      const Cut c, const TransposedOutput how, const Rule rule) {
  ptx::wait_for_earlier_kernels();
  SHARED(uint2, tile, [kSide * kSquares]);
  SHARED(uint32_t, smem, [kSquares * kSmem]);
  SHARED(float, of_column, [kSide]);
  const int tiles = (c.columns + kSide - 1) / kSide, thread = static_cast<int>(threadIdx.x);
  const int64_t band = blockIdx.x / tiles, bands = (c.rows + kSide - 1) / kSide;
  const int first_column = static_cast<int>(blockIdx.x % tiles) * kSide;
  const int across = thread % kSquares, down = thread / kSquares, column = first_column + across * kElements;
  const int64_t row = band * kSide + down * kElements;
  const bool given = rule.given && *rule.given > 0;
  float v[kElements][kElements];
#pragma unroll
  for (int r = 0; r < kElements; ++r) x.load(v[r], row + r, column, c, row + r < c.rows && column < c.columns);
  float factors[kElements];
  if (how.of_columns) {
    if (how.of_tiles) {
#pragma unroll
      for (int k = 0; k < kElements; ++k) {
        uint32_t all = 0;
#pragma unroll
        for (int r = 0; r < kElements; ++r) all = Max{}(all, magnitude(v[r][k]));
        smem[down * kSmem + k * kSquares + across] = all;
      }
      __syncthreads();
    }
    if (thread < kSide) {
      const int mine = first_column + thread % kSquares * kElements + thread / kSquares;
      uint32_t all = !how.of_tiles && mine < c.columns ? most[mine] : 0;
      for (int i = 0; how.of_tiles && i < kSquares; ++i) all = Max{}(all, smem[i * kSmem + thread]);
      const Scaled s = scaled(all, rule);
      of_column[thread] = s.factor;
      if (mine < c.columns && how.of_tiles) scales[mine * bands + band] = s.scale;
      if (mine < c.columns && !how.of_tiles && band == 0) scales[mine] = s.scale;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kElements; ++k) factors[k] = of_column[k * kSquares + across];
  } else {
    const Scaled s = given ? Scaled{*rule.given, 0.f} : scaled(*most, rule);
#pragma unroll
    for (float& f : factors) f = s.factor;
    if (blockIdx.x == 0 && thread == 0 && !rule.given) *scales = s.scale;
  }
  uint32_t amax = 0;
#pragma unroll
  for (int r = 0; how.scales && r < kElements; ++r) {
    uint32_t all = 0;
#pragma unroll
    for (int k = 0; k < kElements; ++k) all = Max{}(all, magnitude(v[r][k]));
    const Scaled s = scaled(over_lanes(all, kSide), rule);
    if (row + r >= c.rows) continue;
    if (across == 0) how.scales[(row + r) * tiles + first_column / kSide] = s.scale;
    float w[kElements];
#pragma unroll
    for (int k = 0; k < kElements; ++k) w[k] = __fmul_rn(v[r][k], s.factor);
    if (column < c.columns) store_quantized(quantized + (row + r) * c.columns, w, c, column, rule.e5m2);
  }
  uint2 of_columns[kElements];
#pragma unroll
  for (int half = 0; half < 2; ++half) {  // half of the 8 rows
    uint32_t words[2][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = 4 * half + i;
#pragma unroll
      for (int k = 0; k < kElements; ++k) {
        if (given) amax = Max{}(amax, magnitude(v[r][k]));
        v[r][k] = __fmul_rn(v[r][k], factors[k]);
      }
#pragma unroll
      for (int k = 0; k < 2; ++k)
        words[k][i] = code_pair(v[r][4 * k], v[r][4 * k + 1], rule.e5m2) |
                      code_pair(v[r][4 * k + 2], v[r][4 * k + 3], rule.e5m2) << 16;
      if (quantized && !how.scales && row + r < c.rows)
        store_words(quantized + (row + r) * c.columns, words[0][i], words[1][i], c, column);
    }
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      transpose_4(words[k]);
#pragma unroll
      for (int i = 0; i < 4; ++i) (half == 0 ? of_columns[4 * k + i].x : of_columns[4 * k + i].y) = words[k][i];
    }
  }
#pragma unroll
  for (int k = 0; k < kElements; ++k) tile[(across * kElements + k) * kSquares + (down ^ across)] = of_columns[k];
  __syncthreads();
  const int part = thread % kSquares;
  const int64_t to_row = band * kSide + part * kElements;
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    const int mine = i * kSquares + thread / kSquares, to_column = first_column + mine;
    if (to_column >= c.columns || to_row >= c.rows) continue;
    const uint2 word = tile[mine * kSquares + (part ^ (mine / kElements))];
    uint8_t* to = transposed + to_column * c.rows + to_row;
    if (how.vectors) {
      st8(to, word);
      continue;
    }
#pragma unroll
    for (int k = 0; k < kElements; ++k) {
      if (to_row + k < c.rows) to[k] = static_cast<uint8_t>((k < 4 ? word.x : word.y) >> 8 * (k % 4));
    }
  }
  if (!given) return;
  amax = warp_reduce(amax, Max{});
  if (thread % kLanes == 0) atomicMax(most, amax);
}

// ---- FP4 values, each in a byte, with two levels of scales: tensor/float8.h

// counts->whole = amax of the matrix, the maximum over all blocks.
__global__ void __launch_bounds__(kThreads) find_whole(QuantizeCounts* counts, const uint32_t* most, int64_t blocks) {
  ptx::wait_for_earlier_kernels();
  const int64_t at = int64_t{blockIdx.x} * kThreads + static_cast<int>(threadIdx.x);
  const uint32_t all = warp_reduce(at < blocks ? most[at] : 0u, Max{});
  if (threadIdx.x % kLanes == 0) atomicMax(&counts->whole, all);
}

// Same as round_at_random() of tensor/float8.h.
__device__ __forceinline__ uint8_t e2m1_code_at_random(float x, uint32_t random) {
  const float a = fabsf(x);
  if (!(a < 6)) return e2m1_code(x);
  const float gap = a < 2 ? 0.5f : a < 4 ? 1.0f : 2.0f;
  const float steps = __fdiv_rn(a, gap), below = floorf(steps);
  const float up = static_cast<float>(random >> 8) * 0x1p-24f < steps - below ? 1.0f : 0.0f;
  return e2m1_code(copysignf((below + up) * gap, x));
}

struct Rounding {
  bool at_random;
  uint64_t seed, stream;
};
template <class T>
__global__ void __launch_bounds__(kThreads)
    encode_e2m1(uint8_t* quantized, uint8_t* scales, float* global, const QuantizeCounts* counts, const uint32_t* most,
                const T* x, const Cut c, const Rounding rounding) {
  ptx::wait_for_earlier_kernels();
  const Place at(c);
  const Scaled whole = whole_scale(counts->whole);
  if (blockIdx.x == 0 && threadIdx.x == 0) *global = whole.scale;
  const uint64_t stream = rounding.stream + counts->whole;
  for (int i = 0; i < at.rows; ++i) {
    const int64_t row = at.first + i, row_of_blocks = at.block_row(c, row) * c.across;
    PhiloxBlock random{};
    for (int k = 0; k < kElements && at.column + k < c.columns; ++k) {
      const int column = at.column + k;
      const int64_t block = row_of_blocks + column / c.width, element = row * c.columns + column;
      float factor = 0;
      uint8_t scale = 0;
      if (whole.factor != 0) {
        const float exact = __fmul_rn(__fdiv_rn(__uint_as_float(most[block]), 6.f), whole.factor);
        scale = static_cast<uint8_t>(code_pair(exact, 0, false));
        factor = scale == 0 ? 0 : __fdiv_rn(whole.factor, e4m3_value(scale));
      }
      if (column % c.width == 0 && (c.height == 1 || row == at.band * c.band)) scales[block] = scale;
      const float value = __fmul_rn(to_float(x[element]), factor);
      if (rounding.at_random) {
        if (k == 0 || element % 4 == 0) random = philox(rounding.seed, stream, static_cast<uint64_t>(element / 4));
        quantized[element] = e2m1_code_at_random(value, random[static_cast<uint64_t>(element % 4)]);
      } else {
        quantized[element] = e2m1_code(value);
      }
    }
  }
}

// y = H diag(signs) x / 4 for groups of 16 values, which are `apart` elements apart; one thread per group.
template <class T>
__global__ void __launch_bounds__(kThreads)
    hadamard(float* y, const T* x, int64_t groups, int64_t columns, bool along) {
  ptx::wait_for_earlier_kernels();
  constexpr int kCount = static_cast<int>(kHadamard);
  const int64_t group = int64_t{blockIdx.x} * kThreads + static_cast<int>(threadIdx.x);
  if (group >= groups) return;
  const int64_t apart = along ? 1 : columns;
  const int64_t first = along ? group * kCount : group / columns * columns * kCount + group % columns;
  double v[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const auto value = static_cast<double>(to_float(x[first + i * apart]));
    v[i] = kHadamardSigns >> i & 1 ? -value : value;
  }
#pragma unroll
  for (int half = 1; half < kCount; half *= 2) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i & half) continue;
      const double a = v[i], b = v[i + half];
      v[i] = a + b;
      v[i + half] = a - b;
    }
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) y[first + i * apart] = static_cast<float>(v[i] / 4) + 0.0f;  // zero has no sign
}

// ---- statistics of quantization

template <class T>
__global__ void __launch_bounds__(kThreads)
    count_quantized(QuantizeCounts* counts, const uint8_t* quantized, const void* scales, const float* global,
                    const Matrix<T> x, const Cut c, const Rule rule, double saturates, bool transposed) {
  ptx::wait_for_earlier_kernels();
  SHARED(unsigned, smem, [kLanes]);
  const Place at(c);
  unsigned values = 0, saturated = 0, underflowed = 0, amax = 0;
  const int64_t bands = c.height ? (c.rows + c.height - 1) / c.height : 1;
  for (int i = 0; i < at.rows; ++i) {
    const int64_t row = at.first + i, row_of_blocks = at.block_row(c, row) * c.across;
    for (int k = 0; k < kElements && at.column + k < c.columns; ++k) {
      const uint32_t m = magnitude(x.at(row, at.column + k, c));
      amax = Max{}(amax, m);
      const int64_t across = c.width ? (at.column + k) / c.width : 0;
      const int64_t block = transposed ? across * bands + at.block_row(c, row) : row_of_blocks + across;
      float scale;
      if (global) {
        scale = __fmul_rn(e4m3_value(static_cast<const uint8_t*>(scales)[block]), *global);
      } else if (rule.e8m0) {
        const uint8_t power = static_cast<const uint8_t*>(scales)[block];
        scale = power == 255 ? __uint_as_float(kNan) : ldexpf(1.f, power - 127);
      } else {
        scale = static_cast<const float*>(scales)[block];
      }
      if (m == 0 || magnitude(scale) > kInfinity) continue;
      ++values;
      const uint8_t code = quantized[transposed ? (at.column + k) * c.rows + row : row * c.columns + at.column + k];
      if (scale > 0 && static_cast<double>(__uint_as_float(m)) > static_cast<double>(scale) * saturates) ++saturated;
      if ((code & (global ? 0x7u : 0x7fu)) == 0) ++underflowed;
    }
  }
  values = block_reduce(values, smem, Plus{});
  saturated = block_reduce(saturated, smem, Plus{});
  underflowed = block_reduce(underflowed, smem, Plus{});
  amax = block_reduce(amax, smem, Max{});
  if (threadIdx.x != 0) return;
  atomicAdd(&counts->values, static_cast<unsigned long long>(values));
  atomicAdd(&counts->saturated, static_cast<unsigned long long>(saturated));
  atomicAdd(&counts->underflowed, static_cast<unsigned long long>(underflowed));
  atomicMax(&counts->amax, amax);
}

// Adds the counts to the statistics, as QuantizeStatistics::add() does.
__global__ void add(double* statistics, const QuantizeCounts* counts) {
  ptx::wait_for_earlier_kernels();
  statistics[0] += static_cast<double>(counts->values);
  statistics[1] += static_cast<double>(counts->saturated);
  statistics[2] += static_cast<double>(counts->underflowed);
  const auto now = static_cast<double>(__uint_as_float(counts->amax)), before = statistics[3];
  if (counts->amax > kInfinity || now > before) statistics[3] = now;  // once NaN, it stays NaN
}

LaunchConfig threads(int64_t count, cudaStream_t stream) {
  return {dim3(grid_size(div_ceil<int64_t>(count, kThreads))), dim3(kThreads), 0, stream};
}
LaunchConfig tiles(const Cut& c, cudaStream_t stream) {
  return {dim3(grid_size(div_ceil<int64_t>(c.rows, c.band) * c.tiles)), dim3(kThreads), 0, stream};
}
// Computes the op's statistics and adds them to op.statistics; `counts` must be zeros.
template <class T>
void count(const Quantize& op, QuantizeCounts* counts, const Matrix<T>& x, const Cut& c, const Rule& rule,
           cudaStream_t stream) {
  CUDA_CHECK(launch(count_quantized<T>, tiles(c, stream), counts, static_cast<const uint8_t*>(op.quantized.data),
                    static_cast<const void*>(op.scales.data), data<const float>(op.global), x, c, rule,
                    saturates(op.quantized.dtype), op.transpose_only));
  add_counts(op.statistics, counts, stream);
}
template <class T>
void run_from(const Quantize& op, const Matrix<T>& x, const Rule& rule, QuantizeCounts* counts, uint32_t* most,
              cudaStream_t stream) {
  Cut c = cut_of(op);
  const bool is_shared = shared(c), of_tiles = (op.transpose_only && op.blocks.rows == kSide) || op.transposed_scales;
  const bool finds = is_shared && !op.amax;
  const auto zeros = finds ? static_cast<size_t>(op.scales.numel()) * sizeof(uint32_t) : 0;
  if (op.statistics || finds || op.two_levels()) CUDA_CHECK(cudaMemsetAsync(counts, 0, sizeof *counts + zeros, stream));
  auto* quantized = static_cast<uint8_t*>(op.quantized.data);
  c.vectors = rows_are_vectors(c.columns, x.x) && c.columns % kElements == 0 &&
              reinterpret_cast<uintptr_t>(quantized) % kElements == 0;
  const LaunchConfig config = tiles(c, stream);
  const uint32_t* magnitudes = most;
  if (!of_tiles && !op.amax) CUDA_CHECK(launch(find_most<T>, config, most, x, c, is_shared, rule.given));
  if (op.transpose_only || op.transposed) {
    auto* transposed = static_cast<uint8_t*>(op.transpose_only ? op.quantized.data : op.transposed.data);
    const TransposedOutput how{
        .of_columns = of_tiles || op.blocks.cols == 1,
        .of_tiles = of_tiles,
        .vectors = c.rows % kElements == 0 && reinterpret_cast<uintptr_t>(transposed) % kElements == 0,
        .scales = op.transposed_scales ? data<float>(op.scales) : nullptr};
    const int64_t squares = div_ceil<int64_t>(c.rows, kSide) * div_ceil<int64_t>(c.columns, kSide);
    CUDA_CHECK(launch(encode_transposed<T>, {dim3(grid_size(squares)), dim3(kThreads), 0, stream}, transposed,
                      op.transpose_only ? nullptr : quantized,
                      data<float>(op.transposed_scales ? op.transposed_scales : op.scales), most, x, c, how, rule));
  } else if (op.two_levels()) {
    const QuantizeCounts* found = counts;
    CUDA_CHECK(launch(find_whole, threads(op.scales.numel(), stream), counts, magnitudes, op.scales.numel()));
    CUDA_CHECK(launch(encode_e2m1<T>, config, quantized, data<uint8_t>(op.scales), data<float>(op.global), found,
                      magnitudes, x.x, c, Rounding{op.at_random, op.seed, op.stream}));
  } else {
    CUDA_CHECK(launch(encode<T>, config, quantized, op.scales.data, most, x, c, rule));
  }
  if (op.factor || op.step_amax)
    CUDA_CHECK(launch(finish_delayed, {dim3(1), dim3(1), 0, stream}, data<float>(op.scales), magnitudes, rule));
  if (op.statistics) count(op, counts, x, c, rule, stream);
  if (!op.transposed_statistics) return;
  CUDA_CHECK(cudaMemsetAsync(counts, 0, sizeof *counts, stream));
  count(op.alone(), counts, x, cut_of(op.alone()), rule, stream);
}

// Quantizes with per-row scales and, if op.transposed, the transpose with per-column scales. If rows fit in shared
// memory, one pass over x finds the amax of rows and of columns.
void run_rows(const Quantize& op, const Rule& rule, QuantizeCounts* counts, uint32_t* most, cudaStream_t stream) {
  const Quantize rows = op.without_transposed();
  Quantize columns = op.transposed ? op.alone() : Quantize{};
  if (rows_fit(op)) {
    const auto zeros = static_cast<size_t>(op.transposed ? op.x.cols() : 0) * sizeof(uint32_t);
    if (op.statistics || op.transposed) CUDA_CHECK(cudaMemsetAsync(counts, 0, sizeof *counts + zeros, stream));
    encode_rows(op, rule, op.transposed ? most : nullptr, stream);
    if (op.statistics)
      by_type(op.x.dtype,
              [&]<class T>() { count(rows, counts, Matrix<T>{data<const T>(op.x)}, cut_of(rows), rule, stream); });
    columns.amax = {most, DType::f32, {op.x.cols()}};
  } else {
    run(rows, counts, stream);
  }
  if (op.transposed) run(columns, counts, stream);
}
}  // namespace

void find_amax(const Tensor& amax, const Tensor& matrix, cudaStream_t stream) {
  uint32_t* most = zeroed(amax, stream);
  if (!amax || matrix.numel() == 0) return;
  by_type(matrix.dtype, [&]<class T>() {
    Quantize whole{};
    whole.x = matrix;
    Cut c = cut_of(whole);
    const Matrix<T> x{data<const T>(matrix)};
    c.vectors = rows_are_vectors(c.columns, x.x) && c.columns % kElements == 0;
    CUDA_CHECK(launch(find_most<T>, tiles(c, stream), most, x, c, true, static_cast<const float*>(nullptr)));
  });
}

void add_counts(const Tensor& statistics, const QuantizeCounts* counts, cudaStream_t stream) {
  CUDA_CHECK(launch(add, {dim3(1), dim3(1), 0, stream}, data<double>(statistics), counts));
}

void run(const Quantize& op, void* scratch, cudaStream_t stream) {
  if (op.x.numel() == 0) return;
  auto* counts = static_cast<QuantizeCounts*>(scratch);
  auto* most = op.amax ? data<uint32_t>(op.amax) : reinterpret_cast<uint32_t*>(counts + 1);
  if (op.hadamard) {
    Quantize transformed = op;
    transformed.hadamard = false;
    transformed.x = {most + transformed_at(op), DType::f32, op.x.shape};
    const int64_t groups = op.x.numel() / kHadamard;
    by_type(op.x.dtype, [&]<class T>() {
      CUDA_CHECK(launch(hadamard<T>, threads(groups, stream), data<float>(transformed.x), data<const T>(op.x), groups,
                        op.x.cols(), op.blocks.rows == 1));
    });
    return run(transformed, scratch, stream);
  }
  const Rule rule{.most_code = max_code(op.quantized.dtype),
                  .e5m2 = op.quantized.dtype == DType::f8_e5m2,
                  .power_of_two = op.powers(),
                  .e8m0 = op.scales.dtype == DType::f8_e8m0,
                  .given = data<const float>(op.factor),
                  .amax = data<float>(op.step_amax)};
  if ((op.transposed_scales && op.blocks.cols == 0) || rows_fit(op)) return run_rows(op, rule, counts, most, stream);
  by_type(op.x.dtype, [&]<class T>() { run_from(op, Matrix<T>{data<const T>(op.x)}, rule, counts, most, stream); });
}
}  // namespace athanor::cuda
