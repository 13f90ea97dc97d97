// The innermost loops of GEMMs and attention, compiled once per instruction set and chosen at run time. A "unit" is 32
// bits along K: one f32, or two consecutive bf16 in the kernels that multiply bf16 pairs.
#pragma once
#include <cstdint>

#include "cpu/isa.h"
#include "tensor/dtype.h"

namespace athanor {

// c[rows, n] = A B, or c += A B with `add`. All strides are in units.
struct Micro {
  const float* a;  // row kernels: A[i, k] at a[i * a_stride + k]; column kernels: at a[k * a_stride + i]
  int64_t a_stride;
  int64_t a_step = 16;  // AMX kernels: units between 16 units of A's rows and the next 16
  const float* b;       // B[k, j] at b[k * b_stride + j]; Kernels::nr columns are read
  int64_t b_stride;
  float* c;  // c[i, j] at c[i * c_stride + j]; n columns are written
  int64_t c_stride;
  int64_t k;  // units
  int64_t n;  // 1 .. Kernels::nr
  bool add;
  const float* ahead;  // memory that a later call reads: ahead[k * ahead_step] is prefetched into L2 for every k
  int64_t ahead_step;
  const char* next;  // memory that a later GEMM reads, or any: next[k * next_step] is prefetched likewise
  int64_t next_step;
  // AMX kernels prefetch these into L2 instead of `ahead` and `next`: rows of A that a later call reads, of k units
  // each, and rows of the result that a later call writes, of `lines` cache lines each.
  struct Rows {
    const char* first;
    int64_t stride, rows, lines;  // stride in bytes
  } read_ahead, write_ahead;
};

// A rank-2 operand in memory, the input of packing.
struct Source {
  const void* data;
  int64_t stride;  // elements between rows
  DType dtype;     // f32, bf16 or f16
  bool tf32;       // round f32 elements to TF32
};

// GEMMs of few rows of x with a part of w, which is read once, in place, in any dtype.
struct FewRows {
  const float* x;  // [m, k], m in 1 .. kMaxFewRows; k: the part's columns for dots, its rows for sums
  int64_t x_stride;
  Source w;
  int64_t row, rows, column, columns;  // position and size of the part in w
  const void* next;                    // start of the part that is probably read next; its first rows are prefetched
  float* out;
  int64_t out_stride;
};
constexpr int kMaxFewRows = 4;

// Scores of nr queries (lanes) against some keys (rows), and the state of their softmax [Milakov & Gimelshein 2018].
struct Softmax {
  float* s;  // [rows, nr]: q·k, -inf where masked; becomes exp(scale q·k - top)
  int64_t rows;
  float scale;
  float* top;      // [nr]: maximum scaled score so far, -inf before the first block
  float* sum;      // [nr]: sum of exponentials so far, 0 before the first block
  float* rescale;  // [nr], output: factor for the results accumulated so far
};

// Gradient of attention scores: p = exp(scale q·k - lse), ds = p (dp - delta) scale.
struct ScoreGradient {
  float* s;   // [rows, stride]: q·k, -inf where masked; becomes p
  float* ds;  // [rows, stride]: dp = dy·v; becomes ds
  int64_t rows, stride;
  float scale;
  const float* lse;    // [nr], +inf for queries without keys
  const float* delta;  // [nr]: dy·y
};

struct Kernels {
  const char* name;
  int mr, nr;
  int mr_pairs;  // maximum rows of the *_pairs kernels
  int max_rows(bool pairs) const { return pairs ? mr_pairs : mr; }
  // Indexed by rows - 1, with rows in 1 .. mr or mr_pairs. The *_pairs kernels are null without bf16 instructions;
  // by_column_pairs is null also where A must be transposed into rows first.
  using MicroFn = void (*)(const Micro&);
  const MicroFn* by_row;
  const MicroFn* by_column;
  const MicroFn* by_row_pairs;
  const MicroFn* by_column_pairs;
  const MicroFn* micros(bool columns, bool pairs) const {
    return columns ? (pairs ? by_column_pairs : by_column) : (pairs ? by_row_pairs : by_row);
  }

  // Packing starts at element [row, column] of the source and writes whole panels, zeros outside the source.
  // rows: dst[rows][dst_stride] from src[row .. row + rows, column .. column + k]
  void (*pack_rows)(float* dst, int64_t dst_stride, const Source&, int64_t row, int64_t rows, int64_t column, int64_t k,
                    bool pairs);
  // columns: dst[k][width] from src[row .. row + k, column .. column + n]; width is mr or nr; every `width` columns
  // start a new panel, `panel` floats after the one before
  void (*pack_columns)(float* dst, int64_t panel, int width, const Source&, int64_t row, int64_t k, int64_t column,
                       int64_t n, bool pairs);
  // transposed: dst[k][nr] from src[row .. row + n, column .. column + k], n <= nr
  void (*pack_transposed)(float* dst, const Source&, int64_t row, int64_t n, int64_t column, int64_t k, bool pairs);
  // tiles, null without AMX: pairs of src[row .. row + k, column .. column + n], transposed: row blocks of
  // mr_pairs columns, `block` units apart, of tiles [units of k / 16][mr_pairs][16], up to a multiple of 32 units
  void (*pack_tiles)(float* dst, int64_t block, const Source&, int64_t row, int64_t k, int64_t column, int64_t n);
  // Units of src[k][src_stride], n columns, transposed: dst[n][dst_stride], with zeros from k to the next multiple of
  // nr.
  void (*transpose)(float* dst, int64_t dst_stride, const float* src, int64_t src_stride, int64_t k, int64_t n);
  // f32 to bf16, n a multiple of nr, null without bf16 instructions. round: src[rows][n] to units dst[rows][n / 2].
  // pair: rows 2 i and 2 i + 1 (zeros after the last) become units dst[i][n].
  using RoundFn = void (*)(float* dst, int64_t dst_stride, const float* src, int64_t src_stride, int64_t rows,
                           int64_t n);
  RoundFn round_rows, pair_rows;

  using FewRowsFn = void (*)(const FewRows&);
  const FewRowsFn* dots;  // [m - 1]; out[i, j] = x row i · row j of the part
  const FewRowsFn* sums;  // [m - 1]; out[i, j] = x row i · column j of the part
  void (*softmax)(const Softmax&);
  void (*score_gradient)(const ScoreGradient&);
  bool amx;           // the *_pairs kernels use the tile unit of AMX
  void (*release)();  // ends a thread's use of the *_pairs kernels; may be null
};

// 0 .. N-1 as template arguments: std's own templates must not be used under a target pragma.
template <int... I>
struct Indices {};
template <int N, int... I>
struct IndicesTo : IndicesTo<N - 1, N - 1, I...> {};
template <int... I>
struct IndicesTo<0, I...> {
  using type = Indices<I...>;
};

const Kernels& kernels();        // the table of isa()
const Kernels* kernels_of(Isa);  // null if this CPU or compiler does not support it

}  // namespace athanor
