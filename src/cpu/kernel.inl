// Bodies of kernel.h for one instruction set. The including file has defined, inside a namespace of its own and under
// its target pragma: kLanes, kMr, kVectors, V (a vector of kLanes floats), madd(a, b, c) = a b + c, madd_pairs, and
// widen(p), which converts kLanes bf16 or f16 in memory to a V. This file must not call library templates: they would
// be compiled for the wrong CPU.

constexpr int kNr = kVectors * kLanes;
typedef float Unaligned __attribute__((vector_size(kLanes * 4), aligned(1), may_alias));
typedef uint32_t Unit __attribute__((may_alias));

inline V load(const float* p) { return *reinterpret_cast<const Unaligned*>(p); }
inline void store(float* p, V v) { *reinterpret_cast<Unaligned*>(p) = v; }

// Writes or adds R rows of kNr sums to the n columns of c, fewer than kNr.
template <int R>
inline void write_edge(const float* edge, const Micro& m) {
  for (int r = 0; r < R; ++r)
    for (int64_t j = 0; j < m.n; ++j) {
      float& at = m.c[r * m.c_stride + j];
      at = m.add ? at + edge[r * kNr + j] : edge[r * kNr + j];
    }
}

template <int R>
inline void write_back(const V (&acc)[R][kVectors], const Micro& m) {
  float edge[R * kNr];
  const bool whole = m.n == kNr;
  float* c = whole ? m.c : edge;
  const int64_t stride = whole ? m.c_stride : kNr;
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      float* at = c + r * stride + v * kLanes;
      store(at, whole && m.add ? load(at) + acc[r][v] : acc[r][v]);
    }
  if (!whole) write_edge<R>(edge, m);
}

// R x kNr accumulators in registers; each k loads one row of b and broadcasts R values of a.
template <int R, bool kByRow, bool kInPairs>
void micro(const Micro& m) {
  V acc[R][kVectors] = {};
  // Rows in groups of three, since base, base + s and base + 2 s are addresses that x86 loads can form.
  constexpr int kGroups = (R + 2) / 3;
  const int64_t s = m.a_stride;
  const float* group[kGroups];
#pragma GCC unroll 8
  for (int g = 0; g < kGroups; ++g) group[g] = m.a + 3 * g * s;
  const float *a = m.a, *b = m.b;
  const float* ahead = m.ahead;
  const char* next = m.next;
  // c is accessed last and its rows are far apart: prefetch it while the products are accumulated.
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kNr; v += 16) __builtin_prefetch(m.c + r * m.c_stride + v, 1, 3);
#pragma GCC unroll 2
  for (int64_t k = 0; k < m.k; ++k) {
    V bv[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) bv[v] = load(b + v * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const float x = kByRow ? group[r / 3][(r % 3) * s + k] : a[r];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        if constexpr (kInPairs)
          acc[r][v] = madd_pairs(x, bv[v], acc[r][v]);
        else
          acc[r][v] = madd(x, bv[v], acc[r][v]);
      }
    }
    __builtin_prefetch(ahead, 0, 2);
    ahead += m.ahead_step;
    __builtin_prefetch(next, 0, 2);
    next += m.next_step;
    b += m.b_stride;
    if (!kByRow) a += s;
  }
  write_back<R>(acc, m);
}

// --- packing ---------------------------------------------------------------------------------------------------------

template <bool kTf32>
inline float as_f32(float x) {
  return kTf32 ? round_tf32(x) : x;
}
template <bool kTf32, class T>
inline float as_f32(T x) {
  return to_float(x);
}

// Calls fn.run<T, tf32>() with the source's element type.
template <class Fn>
inline void by_source(const Source& s, const Fn& fn) {
  if (s.dtype == DType::bf16)
    fn.template run<bf16, false>();
  else if (s.dtype == DType::f16)
    fn.template run<f16, false>();
  else if (s.tf32)
    fn.template run<float, true>();
  else
    fn.template run<float, false>();
}

template <class T>
inline const T* at(const Source& s, int64_t row, int64_t column) {
  return static_cast<const T*>(s.data) + row * s.stride + column;
}

// Two consecutive bf16 along K as one unit: the lower k in the lower half.
inline uint32_t pair_of(bf16 low, bf16 high) { return uint32_t(low.bits) | uint32_t(high.bits) << 16; }

typedef uint16_t Halves4 __attribute__((vector_size(8), aligned(1), may_alias));
typedef uint16_t Halves16 __attribute__((vector_size(32), aligned(1), may_alias));
typedef uint32_t Units4 __attribute__((vector_size(16), aligned(1), may_alias));
typedef uint32_t Units16 __attribute__((vector_size(64), aligned(1), may_alias));

// Writes W pairs of two rows of W bf16 as vectors, which GCC does not do by itself for a W such as 12.
template <int W>
inline void pair_rows_of(Unit* to, const bf16* low, const bf16* high) {
  int l = 0;
  for (; l + 16 <= W; l += 16) {
    const Units16 a = __builtin_convertvector(*reinterpret_cast<const Halves16*>(low + l), Units16),
                  b = __builtin_convertvector(*reinterpret_cast<const Halves16*>(high + l), Units16);
    *reinterpret_cast<Units16*>(to + l) = a | b << 16;
  }
  for (; l + 4 <= W; l += 4) {
    const Units4 a = __builtin_convertvector(*reinterpret_cast<const Halves4*>(low + l), Units4),
                 b = __builtin_convertvector(*reinterpret_cast<const Halves4*>(high + l), Units4);
    *reinterpret_cast<Units4*>(to + l) = a | b << 16;
  }
  for (; l < W; ++l) to[l] = pair_of(low[l], high[l]);
}

struct PackRows {
  float* dst;
  int64_t dst_stride;
  const Source& source;
  int64_t row, rows, column, k;
  template <class T, bool kTf32>
  void run() const {
    for (int64_t r = 0; r < rows; ++r) {
      const T* __restrict from = at<T>(source, row + r, column);
      float* __restrict to = dst + r * dst_stride;
      for (int64_t i = 0; i < k; ++i) to[i] = as_f32<kTf32>(from[i]);
    }
  }
  void pairs() const {
    const int64_t whole = k / 2, all = (k + 1) / 2;
    for (int64_t r = 0; r < rows; ++r) {
      const bf16* __restrict from = at<bf16>(source, row + r, column);
      Unit* __restrict to = reinterpret_cast<Unit*>(dst + r * dst_stride);
      for (int64_t i = 0; i < whole; ++i) to[i] = pair_of(from[2 * i], from[2 * i + 1]);
      if (whole < all) to[whole] = pair_of(from[k - 1], bf16{0});
    }
  }
};

// Reads whole rows of the source, across panels, since only rows are contiguous. Rows are prefetched, since the
// hardware does not prefetch short pieces of rows that are more than a page apart; in loops instead of a function,
// since GCC drops calls of functions that do nothing else.
template <int W>
struct PackColumns {
  float* dst;
  int64_t panel;
  const Source& source;
  int64_t row, k, column, n;
  static constexpr int64_t kRowsAhead = 16;
  template <class T>
  static constexpr int64_t kLine = 64 / sizeof(T);
  template <class T, bool kTf32>
  void run() const {
    for (int64_t i = 0; i < k; ++i) {
      const T* __restrict from = at<T>(source, row + i, column);
      for (int64_t j = 0; i + kRowsAhead < k && j < n + kLine<T> - 1; j += kLine<T>)
        __builtin_prefetch(from + kRowsAhead * source.stride + (j < n ? j : n - 1), 0, 3);
      float* __restrict to = dst + i * W;
      int64_t j = 0;
      for (; j + W <= n; j += W, to += panel)
        for (int l = 0; l < W; ++l) to[l] = as_f32<kTf32>(from[j + l]);
      if (j < n)
        for (int l = 0; l < W; ++l) to[l] = j + l < n ? as_f32<kTf32>(from[j + l]) : 0.0f;
    }
  }
  void pairs() const {
    for (int64_t i = 0; i < k; i += 2) {
      const bf16* __restrict low = at<bf16>(source, row + i, column), * __restrict high =
                                                                          i + 1 < k ? low + source.stride : nullptr;
      Unit* __restrict to = reinterpret_cast<Unit*>(dst + i / 2 * W);
      int64_t j = 0;
      for (int64_t l = 0; i + kRowsAhead + 1 < k && l < n + kLine<bf16> - 1; l += kLine<bf16>) {
        const bf16* ahead = low + kRowsAhead * source.stride + (l < n ? l : n - 1);
        __builtin_prefetch(ahead, 0, 3);
        __builtin_prefetch(ahead + source.stride, 0, 3);
      }
      if (high)
        for (; j + W <= n; j += W, to += panel) pair_rows_of<W>(to, low + j, high + j);
      for (; j < n; j += W, to += panel)
        for (int l = 0; l < W; ++l) to[l] = j + l < n ? pair_of(low[j + l], high ? high[j + l] : bf16{0}) : 0;
    }
  }
};

template <int... I>
inline V interleave_low(V a, V b, Indices<I...>) {
  return __builtin_shufflevector(a, b, (I % 2 ? kLanes + I / 2 : I / 2)...);
}
template <int... I>
inline V interleave_high(V a, V b, Indices<I...>) {
  return __builtin_shufflevector(a, b, (kLanes / 2 + (I % 2 ? kLanes + I / 2 : I / 2))...);
}

// dst[k][kNr] = transpose of rows of units, rows of dst `stride` apart and kLanes columns `group` apart; from(j) is row
// j, of which n exist. One step of the network rotates the bits of (row, lane) by one: after log2(kLanes) steps rows
// and lanes are exchanged.
inline void transpose(float* dst, int64_t stride, const char* from, int64_t row_bytes, int64_t n, int64_t k,
                      int64_t group = kLanes) {
  using All = typename IndicesTo<kLanes>::type;
  for (int64_t j = 0; j < kNr; j += kLanes, dst += group) {
    int64_t i = 0;
    for (; i + kLanes <= k; i += kLanes) {
      V x[kLanes], y[kLanes];
#pragma GCC unroll 16
      for (int l = 0; l < kLanes; ++l)
        x[l] = j + l < n ? load(reinterpret_cast<const float*>(from + (j + l) * row_bytes) + i) : V{};
#pragma GCC unroll 4
      for (int step = 1; step < kLanes; step *= 2) {
#pragma GCC unroll 8
        for (int l = 0; l < kLanes / 2; ++l) {
          y[2 * l] = interleave_low(x[l], x[l + kLanes / 2], All{});
          y[2 * l + 1] = interleave_high(x[l], x[l + kLanes / 2], All{});
        }
#pragma GCC unroll 16
        for (int l = 0; l < kLanes; ++l) x[l] = y[l];
      }
#pragma GCC unroll 16
      for (int l = 0; l < kLanes; ++l) store(dst + (i + l) * stride, x[l]);
    }
    for (; i < k; ++i)
      for (int64_t l = 0; l < kLanes; ++l) {
        Unit unit = 0;
        if (j + l < n) __builtin_memcpy(&unit, from + (j + l) * row_bytes + i * 4, 4);
        reinterpret_cast<Unit*>(dst)[i * stride + l] = unit;
      }
  }
}

struct PackTransposed {
  float* dst;
  const Source& source;
  int64_t row, n, column, k;
  template <class T, bool kTf32>
  void run() const {
    if constexpr (sizeof(T) == 4 && !kTf32) {
      transpose(dst, kNr, reinterpret_cast<const char*>(at<T>(source, row, column)), source.stride * 4, n, k);
    } else {
      constexpr int64_t kStrip = 64;
      float strip[kNr * kStrip];
      for (int64_t i = 0; i < k; i += kStrip) {
        const int64_t width = k - i < kStrip ? k - i : kStrip;
        for (int64_t j = 0; j < n; ++j) {
          const T* __restrict from = at<T>(source, row + j, column + i);
          for (int64_t l = 0; l < width; ++l) strip[j * kStrip + l] = as_f32<kTf32>(from[l]);
        }
        transpose(dst + i * kNr, kNr, reinterpret_cast<const char*>(strip), kStrip * 4, n, width);
      }
    }
  }
  void pairs() const {
    transpose(dst, kNr, reinterpret_cast<const char*>(at<bf16>(source, row, column)), source.stride * 2, n, k / 2);
    if (k % 2 == 0) return;
    Unit* last = reinterpret_cast<Unit*>(dst + k / 2 * kNr);
    for (int64_t j = 0; j < kNr; ++j)
      last[j] = j < n ? pair_of(*at<bf16>(source, row + j, column + k - 1), bf16{0}) : 0;
  }
};

template <class Pack>
inline void pack(const Pack& p, bool pairs) {
  if (pairs)
    p.pairs();
  else
    by_source(p.source, p);
}
void pack_rows(float* dst, int64_t dst_stride, const Source& s, int64_t row, int64_t rows, int64_t column, int64_t k,
               bool pairs) {
  pack(PackRows{dst, dst_stride, s, row, rows, column, k}, pairs);
}
void pack_columns(float* dst, int64_t panel, int width, const Source& s, int64_t row, int64_t k, int64_t column,
                  int64_t n, bool pairs) {
  if (width == kNr)
    pack(PackColumns<kNr>{dst, panel, s, row, k, column, n}, pairs);
  else
    pack(PackColumns<kMr>{dst, panel, s, row, k, column, n}, pairs);
}
void pack_transposed(float* dst, const Source& s, int64_t row, int64_t n, int64_t column, int64_t k, bool pairs) {
  pack(PackTransposed{dst, s, row, n, column, k}, pairs);
}

void transpose_units(float* dst, int64_t dst_stride, const float* src, int64_t src_stride, int64_t k, int64_t n) {
  for (int64_t i = 0; i < k; i += kNr)
    transpose(dst + i, dst_stride, reinterpret_cast<const char*>(src + i * src_stride), src_stride * 4,
              k - i < kNr ? k - i : kNr, n);
}

#include "cpu/kernel_rows.inl"

// --- attention -------------------------------------------------------------------------------------------------------

typedef int32_t Ints __attribute__((vector_size(kLanes * 4)));

inline V all(float x) { return V{} + x; }

// e^x for x <= 88, about 2 ulp, 0 below -87; NaN stays NaN. Like fast_exp of simd.h, but multiply-adds may fuse,
// and the polynomial is of degree 6 (Chebyshev fit of (e^r - 1 - r)/r^2, error 1e-8).
inline V exp_of(V x) {
  const V c = x < all(-87.0f) ? all(-87.0f) : x;
  constexpr float kRound = 0x1.8p23f;  // adding it leaves the nearest integer in the low bits
  const V shifted = c * 0x1.715476p0f + kRound, n = shifted - kRound;
  const V r = (c - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;
  V p = r * 0.00139262508f + 0.00836323288f;
  p = p * r + 0.0416665542f;
  p = p * r + 0.166665767f;
  p = p * r + 0.5f;
  p = (p * r) * r + (r + 1.0f);
  const Ints power = ((Ints)shifted - 0x4b400000 + 127) << 23;
  const V e = p * (V)power;
  return x < all(-87.0f) ? V{} : e;
}

void softmax(const Softmax& m) {
  const float minus_inf = -__builtin_inff();
  for (int v = 0; v < kNr; v += kLanes) {
    V top = load(m.top + v);
    for (int64_t r = 0; r < m.rows; ++r) {
      const V s = load(m.s + r * kNr + v) * m.scale;
      top = s > top ? s : top;
    }
    const V safe = top == all(minus_inf) ? V{} : top;  // nothing visible yet: exp(-inf - 0) = 0
    const V rescale = exp_of(load(m.top + v) - safe);
    V sum = {};
    for (int64_t r = 0; r < m.rows; ++r) {
      float* at = m.s + r * kNr + v;
      const V e = exp_of(load(at) * m.scale - safe);
      store(at, e);
      sum += e;
    }
    store(m.top + v, top);
    store(m.sum + v, load(m.sum + v) * rescale + sum);
    store(m.rescale + v, rescale);
  }
}

void score_gradient(const ScoreGradient& g) {
  for (int v = 0; v < kNr; v += kLanes) {
    const V lse = load(g.lse + v), delta = load(g.delta + v);
    for (int64_t r = 0; r < g.rows; ++r) {
      float *s = g.s + r * g.stride + v, *ds = g.ds + r * g.stride + v;
      const V p = exp_of(load(s) * g.scale - lse);
      store(s, p);
      store(ds, p * (load(ds) - delta) * g.scale);
    }
  }
}

// --- the table -------------------------------------------------------------------------------------------------------

template <bool kByRow, bool kInPairs, class Rows>
struct Micros;
template <bool kByRow, bool kInPairs, int... R>
struct Micros<kByRow, kInPairs, Indices<R...>> {
  static constexpr Kernels::MicroFn kTable[] = {micro<R + 1, kByRow, kInPairs>...};
};
using Rows = typename IndicesTo<kMr>::type;

// The kernels that every instruction set has.
constexpr Kernels table(const char* name) {
  return {.name = name,
          .mr = kMr,
          .nr = kNr,
          .by_row = Micros<true, false, Rows>::kTable,
          .by_column = Micros<false, false, Rows>::kTable,
          .pack_rows = pack_rows,
          .pack_columns = pack_columns,
          .pack_transposed = pack_transposed,
          .transpose = transpose_units,
          .dots = kDots,
          .sums = kSums,
          .softmax = softmax,
          .score_gradient = score_gradient};
}
