// Conversion, tiling and epilogue for GEMMs by a plug-in.
#include "cpu/gemm_external.h"

#include <algorithm>
#include <type_traits>

#include "cpu/simd.h"

namespace athanor {
namespace {

constexpr int64_t kLargestTile = 512, kSmallestTile = 32;
constexpr int64_t kWantedTiles = 16;
constexpr int64_t kConvertGrain = 64;  // rows per chunk of work

// Scratch memory in floats: a and b as f32, unless they are f32 | a tile of d per worker, unless d is f32.
struct Layout {
  int64_t tile_m, tile_n, a, b, tiles, tile, total;
  static bool copies(const Tensor& t, bool tf32) { return t.dtype != DType::f32 || tf32; }
  Layout(const Gemm& op, int threads) : tile_m(std::min(kLargestTile, op.m())), tile_n(std::min(kLargestTile, op.n())) {
    while (div_ceil(op.m(), tile_m) * div_ceil(op.n(), tile_n) < kWantedTiles &&
           std::max(tile_m, tile_n) > kSmallestTile)
      (tile_m > tile_n ? tile_m : tile_n) = div_ceil<int64_t>(std::max(tile_m, tile_n), 2);
    a = 0;
    b = a + (copies(op.a, op.tf32) ? op.a.numel() : 0);
    tiles = b + (copies(op.b, op.tf32) ? op.b.numel() : 0);
    tile = op.d.dtype == DType::f32 ? 0 : tile_m * tile_n;
    total = tiles + threads * tile;
  }
};

template <class T>
ATHANOR_CLONES void read_row(float* dst, const T* src, int64_t n) {
  load_row(dst, src, n);
}
template <class T>
ATHANOR_CLONES void round_row(T* dst, const float* src, int64_t n) {
  store_row(dst, src, n);
}
ATHANOR_CLONES void round_row_tf32(float* dst, const float* src, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) dst[i] = round_tf32(src[i]);
}

struct Operand {
  const float* data;
  int64_t stride;
};
Operand as_f32(const Tensor& t, bool tf32, float* copy, ThreadPool& pool) {
  if (!Layout::copies(t, tf32)) return {t.as<float>(), t.stride()};
  by_float(t.dtype, [&]<class T>() {
    pool.parallel_ranges(t.rows(), kConvertGrain, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const T* row = t.as<T>() + r * t.stride();
        if constexpr (std::is_same_v<T, float>)
          round_row_tf32(copy + r * t.cols(), row, t.cols());
        else
          read_row(copy + r * t.cols(), row, t.cols());
      }
    });
  });
  return {copy, t.cols()};
}

struct Tile {
  int64_t row, rows, col, cols;
};

// Initializes the tile with the bias or the previous d; returns false if there is nothing to add to.
bool start(const Gemm& op, const Tile& t, float* c, int64_t stride) {
  const bool in_place = op.d.dtype == DType::f32;
  for (int64_t i = 0; i < t.rows && (op.bias || (op.accumulate && !in_place)); ++i)
    if (op.bias)
      by_float(op.bias.dtype, [&]<class T>() { read_row(c + i * stride, op.bias.as<T>() + t.col, t.cols); });
    else
      by_float(op.d.dtype, [&]<class T>() {
        read_row(c + i * stride, op.d.as<T>() + (t.row + i) * op.d.stride() + t.col, t.cols);
      });
  return op.bias || op.accumulate;
}

}  // namespace

size_t gemm_external_scratch(const Gemm& op, int threads) { return size_t(Layout(op, threads).total) * sizeof(float); }

void gemm_external(const Gemm& op, const GemmPlugin& plugin, ThreadPool& pool, void* scratch) {
  const Layout layout(op, pool.size());
  float* memory = static_cast<float*>(scratch);
  const Operand a = as_f32(op.a, op.tf32, memory + layout.a, pool), b = as_f32(op.b, op.tf32, memory + layout.b, pool);
  const int64_t tiles_m = div_ceil(op.m(), layout.tile_m), tiles_n = div_ceil(op.n(), layout.tile_n);
  pool.parallel_for(tiles_m * tiles_n, [&](int64_t chunk, int worker) {
    const int64_t row = chunk % tiles_m * layout.tile_m, col = chunk / tiles_m * layout.tile_n;
    const Tile t{row, std::min(layout.tile_m, op.m() - row), col, std::min(layout.tile_n, op.n() - col)};
    const bool direct = op.d.dtype == DType::f32;
    float* c = direct ? op.d.as<float>() + row * op.d.stride() + col : memory + layout.tiles + worker * layout.tile;
    const int64_t stride = direct ? op.d.stride() : layout.tile_n;
    const bool add = start(op, t, c, stride);
    const int failed =
        plugin.sgemm(op.ta, op.tb, t.rows, t.cols, op.k(), op.ta ? a.data + row : a.data + row * a.stride, a.stride,
                     op.tb ? b.data + col * b.stride : b.data + col, b.stride, c, stride, add);
    if (failed) throw Error(cat("gemm: ", plugin.description, " refused a GEMM of ", t.rows, "x", t.cols, "x", op.k()));
    if (direct) return;
    by_float(op.d.dtype, [&]<class T>() {
      for (int64_t i = 0; i < t.rows; ++i)
        round_row(op.d.as<T>() + (row + i) * op.d.stride() + col, c + i * stride, t.cols);
    });
  });
}

}  // namespace athanor
