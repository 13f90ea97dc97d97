// The *_pairs kernels on the tile unit of AMX, for kernel_avx512.cc: 32 x 32 sums in four tiles, two tiles of A, two of
// B. A tile is 16 rows of 64 bytes; TDPBF16PS multiplies 16 x 16 units of A and of B, adds the products to 16 x 16 f32
// sums, and treats denormals as zeros.

constexpr int kTile = 16;  // rows of a tile, and units in one
constexpr int kMrTiles = 2 * kTile;
static_assert(kNr == 2 * kTile);

// Operand of LDTILECFG: rows and bytes per row of each tile.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// The compiler does not know which memory the tile instructions access.
inline void order_memory() { asm volatile("" ::: "memory"); }

// Tiles 0 to 3 hold sums (0 and 1: the upper 16 rows), 4 and 5 A, 6 and 7 B. Configuring clears all tiles. A thread
// keeps its configuration until it needs another number of rows or releases it.
thread_local int configured_rows = 0;
inline void configure_tiles(int rows) {
  if (rows == configured_rows) return;
  TileConfig config;
  const int lower = rows > kTile ? rows - kTile : 0,
            of_tile[8] = {rows - lower, rows - lower, lower, lower, rows - lower, lower, kTile, kTile};
  for (int t = 0; t < 8; ++t) {
    config.rows[t] = uint8_t(of_tile[t]);
    config.row_bytes[t] = of_tile[t] > 0 ? 64 : 0;
  }
  order_memory();
  _tile_loadconfig(&config);
  configured_rows = rows;
}
void release_tiles() {
  if (configured_rows > 0) _tile_release();
  configured_rows = 0;
}

// sums += 16 units of A times 16 units of B
template <bool kTwo>
inline void add_products(const float* a, int64_t a_stride, const float* b, int64_t b_stride) {
  _tile_loadd(6, b, b_stride * 4);
  _tile_loadd(4, a, a_stride * 4);
  _tile_loadd(7, b + kTile, b_stride * 4);
  _tile_dpbf16ps(0, 4, 6);
  _tile_dpbf16ps(1, 4, 7);
  if constexpr (kTwo) {
    _tile_loadd(5, a + kTile * a_stride, a_stride * 4);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
}

// The last units of A and B, fewer than 16, with zeros after them.
template <bool kTwo>
inline void add_last_products(const float* a, int64_t a_stride, const float* b, int64_t b_stride, int rows, int units) {
  float of_a[kMrTiles * kTile] = {}, of_b[kTile * kNr] = {};
  for (int r = 0; r < rows; ++r) __builtin_memcpy(of_a + r * kTile, a + r * a_stride, size_t(units) * 4);
  for (int k = 0; k < units; ++k) __builtin_memcpy(of_b + k * kNr, b + k * b_stride, kNr * 4);
  order_memory();
  add_products<kTwo>(of_a, kTile, of_b, kNr);
  order_memory();
}

template <int R>
void micro_tiles(const Micro& m) {
  constexpr bool kTwo = R > kTile;
  configure_tiles(R);
  const bool whole = m.n == kNr;
  const int64_t bytes = m.c_stride * 4;
  order_memory();
  if (whole && m.add) {
    _tile_loadd(0, m.c, bytes);
    _tile_loadd(1, m.c + kTile, bytes);
    if constexpr (kTwo) {
      _tile_loadd(2, m.c + kTile * m.c_stride, bytes);
      _tile_loadd(3, m.c + kTile * m.c_stride + kTile, bytes);
    }
  } else {
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (kTwo) {
      _tile_zero(2);
      _tile_zero(3);
    }
  }
  const float *a = m.a, *b = m.b;
  const char* write = m.write_ahead.first;
  const int64_t steps = m.k / kTile;
  const int64_t per_step = m.write_ahead.rows > 0 && steps > 0 ? (m.write_ahead.rows + steps - 1) / steps : 0;
  int64_t k = 0, written = 0;
  for (; k + kTile <= m.k; k += kTile, a += m.a_step, b += kTile * m.b_stride) {
    add_products<kTwo>(a, m.a_stride, b, m.b_stride);
    for (int64_t i = 0; i < per_step && written < m.write_ahead.rows; ++i, ++written, write += m.write_ahead.stride)
      for (int64_t l = 0; l < m.write_ahead.lines; ++l) __builtin_prefetch(write + l * 64, 1, 2);
    const char* read = m.read_ahead.first;
    for (int64_t r = 0; r < m.read_ahead.rows; ++r, read += m.read_ahead.stride) __builtin_prefetch(read + k * 4, 0, 2);
  }
  if (k < m.k) add_last_products<kTwo>(a, m.a_stride, b, m.b_stride, R, int(m.k - k));
  float edge[R * kNr];
  float* c = whole ? m.c : edge;
  const int64_t stride = whole ? m.c_stride : kNr;
  _tile_stored(0, c, stride * 4);
  _tile_stored(1, c + kTile, stride * 4);
  if constexpr (kTwo) {
    _tile_stored(2, c + kTile * stride, stride * 4);
    _tile_stored(3, c + kTile * stride + kTile, stride * 4);
  }
  order_memory();
  if (!whole) write_edge<R>(edge, m);
}

void pack_tiles(float* dst, int64_t block, const Source& s, int64_t row, int64_t k, int64_t column, int64_t n) {
  constexpr int64_t kDeep = 2 * kNr;  // rows of the source per strip
  float strip[kNr * kNr];
  for (int64_t i = 0; i < k; i += kDeep)
    for (int64_t j = 0; j < n; j += kMrTiles) {
      const int64_t deep = k - i < kDeep ? k - i : kDeep, wide = n - j < kMrTiles ? n - j : kMrTiles;
      const int64_t after = k - i - kDeep < kDeep ? k - i - kDeep : kDeep;
      for (int64_t r = 0; r < after; ++r) __builtin_prefetch(at<bf16>(s, row + i + kDeep + r, column + j), 0, 2);
      PackColumns<kNr>{strip, 0, s, row + i, deep, column + j, wide}.pairs();
      transpose(dst + j / kMrTiles * block + i / 2 * kMrTiles, kTile, reinterpret_cast<const char*>(strip), kNr * 4,
                (deep + 1) / 2, wide, kMrTiles * kTile);
    }
}

template <class Rows>
struct TileMicros;
template <int... R>
struct TileMicros<Indices<R...>> {
  static constexpr Kernels::MicroFn kTable[] = {micro_tiles<R + 1>...};
};
