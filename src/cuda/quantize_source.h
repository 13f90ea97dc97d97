// What becomes codes: a matrix in memory, or what follows from one and is stored nowhere (Quantize::dy and norm), with
// the bits that the op which stores it would give it.
#pragma once
#include "cuda/activation.h"
#include "cuda/encode.h"
#include "cuda/host_tools.h"
#include "cuda/norm.h"
#include "cuda/pack.h"
#include "cuda/vectors.h"
#include "ops/quantize.h"
namespace athanor::cuda {

// A matrix in blocks of `height` by `width`, and how it is cut: see the head of quantize.cu.
struct Cut {
  int64_t rows;
  int columns, height, width;  // of blocks; 0: all
  int across;                  // blocks of a row
  int band, tiles;             // rows of a band; tiles of 256 columns
  bool vectors;
};

template <class T>
__device__ __forceinline__ float rounded_to(float x) {
  return to_float(from_float<T>(x));
}

// A matrix in memory. load(): 8 elements of a row, 0 where they are not `inside`. kBlocks: that a multiprocessor must
// hold at once with tiles in registers. follow(), of rows in vectors that lie on the chip: makes of kParts chunks of x,
// which are columns / kParts apart, what becomes codes, before it is rounded; whether that is not x itself. row(): what
// it needs of a row.
template <class T>
struct Stored {
  using Element = T;
  static constexpr int kBlocks = sizeof(T) == 2 ? 2 : 1, kParts = 1;
  const T* x;  // [rows, columns]
  __device__ __forceinline__ void load(float (&v)[kElements], int64_t row, int column, const Cut& c,
                                       bool inside) const {
    load_chunk(v, x + row * c.columns, column, inside ? c.columns : 0, c.vectors && inside);
  }
  __device__ __forceinline__ float at(int64_t row, int column, const Cut& c) const {
    return to_float(x[row * c.columns + column]);
  }
  static __device__ __forceinline__ int tile(int number, int) { return number; }
  struct Row {};
  __device__ __forceinline__ Row row(int64_t, int) const { return {}; }
  __device__ __forceinline__ bool follow(float (&)[kParts][kElements], const Row&, int) const { return false; }
};
// Or the gradient of x = [gate | up] through SwiGLU, rounded as SwigluBwd stores it. Both halves are made of the same
// numbers, so that tiles of them are neighbours: the second reads from L2.
template <class T>
struct SwigluGradientOf {
  using Element = T;
  static constexpr int kBlocks = 2, kParts = 2;
  const T *dy, *x;  // [rows, columns / 2], [rows, columns]
  __device__ __forceinline__ void load(float (&v)[kElements], int64_t row, int column, const Cut& c,
                                       bool inside) const {
    const int half = c.columns / 2, columns = inside ? half : 0;
    const bool up = column >= half, vectors = c.vectors && inside;
    const int first = up ? column - half : column;
    float d[kElements], g[kElements], u[kElements];
    load_chunk(d, dy + row * half, first, columns, vectors);
    load_chunk(g, x + row * c.columns, first, columns, vectors);
    load_chunk(u, x + row * c.columns + half, first, columns, vectors);
#pragma unroll
    for (int k = 0; k < kElements; ++k) v[k] = of(d[k], g[k], u[k], up);
  }
  __device__ __forceinline__ float at(int64_t row, int column, const Cut& c) const {
    const int half = c.columns / 2, first = column % half;
    const T* g = x + row * c.columns + first;
    return of(to_float(dy[row * half + first]), to_float(g[0]), to_float(g[half]), column >= half);
  }
  static __device__ __forceinline__ int tile(int number, int tiles) { return number / 2 + number % 2 * (tiles / 2); }
  using Row = const T*;  // of dy
  __device__ __forceinline__ Row row(int64_t row, int columns) const { return dy + row * (columns / 2); }
  __device__ __forceinline__ bool follow(float (&v)[kParts][kElements], Row of_row, int column) const {
    float d[kElements];
    load_chunk(d, of_row, column, 0, true);
#pragma unroll
    for (int k = 0; k < kElements; ++k) {
      const SwigluGradient gradient = swiglu_gradient(d[k], v[0][k], v[1][k]);
      v[0][k] = gradient.gate, v[1][k] = gradient.up;
    }
    return true;
  }

 private:
  static __device__ __forceinline__ float of(float dy, float gate, float up, bool of_up) {
    const SwigluGradient gradient = swiglu_gradient(dy, gate, up);
    return rounded_to<T>(of_up ? gradient.up : gradient.gate);
  }
};
// Or the norm of the rows of x, rounded as NormApply stores it.
template <class T>
struct NormOf {
  using Element = T;
  static constexpr int kBlocks = 2, kParts = 1;
  const T* x;                // [rows, columns]
  const float *mean, *rstd;  // [rows]; mean null for rms
  Weights w, b;              // [columns]; b null for rms
  __device__ __forceinline__ void load(float (&v)[kElements], int64_t row, int column, const Cut& c,
                                       bool inside) const {
    load_chunk(v, x + row * c.columns, column, inside ? c.columns : 0, c.vectors && inside);
    if (!inside) return;
    float weight[kElements], bias[kElements];
    load_factors(weight, w, column, c.vectors, 1.f);
    load_factors(bias, b, column, c.vectors, 0.f);
    const Row r = this->row(row, c.columns);
#pragma unroll
    for (int k = 0; k < kElements; ++k) v[k] = rounded_to<T>(normalised(v[k], r.mean, r.rstd, weight[k], bias[k]));
  }
  __device__ __forceinline__ float at(int64_t row, int column, const Cut& c) const {
    const Row r = this->row(row, c.columns);
    float weight[1], bias[1] = {};
    load_weights(weight, w, column);
    if (b.data) load_weights(bias, b, column);
    return rounded_to<T>(normalised(to_float(x[row * c.columns + column]), r.mean, r.rstd, weight[0], bias[0]));
  }
  static __device__ __forceinline__ int tile(int number, int) { return number; }
  struct Row {
    float mean, rstd;
  };
  __device__ __forceinline__ Row row(int64_t row, int) const { return {mean ? mean[row] : 0.f, rstd[row]}; }
  __device__ __forceinline__ bool follow(float (&v)[kParts][kElements], const Row& of_row, int column) const {
    float weight[kElements], bias[kElements];
    load_factors(weight, w, column, true, 1.f);
    load_factors(bias, b, column, true, 0.f);
#pragma unroll
    for (int k = 0; k < kElements; ++k) v[0][k] = normalised(v[0][k], of_row.mean, of_row.rstd, weight[k], bias[k]);
    return true;
  }

 private:
  // Columns are whole tiles.
  static __device__ __forceinline__ void load_factors(float (&v)[kElements], const Weights& from, int column,
                                                      bool vectors, float none) {
    if (from.data && vectors) return load_weights(v, from, column);
#pragma unroll
    for (int k = 0; k < kElements; ++k) {
      float one[1] = {none};
      if (from.data) load_weights(one, from, column + k);
      v[k] = one[0];
    }
  }
};

// Calls f with the op's source.
template <class F>
void by_source(const Quantize& op, F f) {
  by_type(op.x.dtype, [&]<class T>() {
    const T* x = data<const T>(op.x);
    if constexpr (sizeof(T) == 2) {
      if (op.dy) return f(SwigluGradientOf<T>{data<const T>(op.dy), x});
      if (op.norm)
        return f(NormOf<T>{.x = x,
                           .mean = data<const float>(op.norm.mean),
                           .rstd = data<const float>(op.norm.rstd),
                           .w = {op.norm.w.data, op.norm.w.dtype},
                           .b = {op.norm.b.data, op.norm.w.dtype}});
    }
    f(Stored<T>{x});
  });
}
}  // namespace athanor::cuda
