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

// A matrix in memory. load(): 8 elements of a row, 0 where they are not `inside`. kBlocks: that a multiprocessor must
// hold at once with tiles in registers.
template <class T>
struct Stored {
  using Element = T;
  static constexpr int kBlocks = sizeof(T) == 2 ? 2 : 1;
  const T* x;  // [rows, columns]
  __device__ __forceinline__ void load(float (&v)[kElements], int64_t row, int column, const Cut& c,
                                       bool inside) const {
    load_chunk(v, x + row * c.columns, column, inside ? c.columns : 0, c.vectors && inside);
  }
  __device__ __forceinline__ float at(int64_t row, int column, const Cut& c) const {
    return to_float(x[row * c.columns + column]);
  }
  static __device__ __forceinline__ int tile(int number, int) { return number; }
};
// Or the gradient of [gate | up] through SwiGLU, rounded as SwigluBwd stores it. Both halves are made of the same
// numbers, so that tiles of them are neighbours: the second reads from L2.
template <class T>
struct SwigluGradientOf {
  using Element = T;
  static constexpr int kBlocks = 2;
  const T *dy, *gu;  // [rows, columns / 2], [rows, columns]
  __device__ __forceinline__ void load(float (&v)[kElements], int64_t row, int column, const Cut& c,
                                       bool inside) const {
    const int half = c.columns / 2, columns = inside ? half : 0;
    const bool up = column >= half, vectors = c.vectors && inside;
    const int first = up ? column - half : column;
    float d[kElements], g[kElements], u[kElements];
    load_chunk(d, dy + row * half, first, columns, vectors);
    load_chunk(g, gu + row * c.columns, first, columns, vectors);
    load_chunk(u, gu + row * c.columns + half, first, columns, vectors);
#pragma unroll
    for (int k = 0; k < kElements; ++k) v[k] = of(d[k], g[k], u[k], up);
  }
  __device__ __forceinline__ float at(int64_t row, int column, const Cut& c) const {
    const int half = c.columns / 2, first = column % half;
    const T* g = gu + row * c.columns + first;
    return of(to_float(dy[row * half + first]), to_float(g[0]), to_float(g[half]), column >= half);
  }
  static __device__ __forceinline__ int tile(int number, int tiles) { return number / 2 + number % 2 * (tiles / 2); }

 private:
  static __device__ __forceinline__ float of(float dy, float gate, float up, bool of_up) {
    const SwigluGradient gradient = swiglu_gradient(dy, gate, up);
    return to_float(from_float<T>(of_up ? gradient.up : gradient.gate));
  }
};
// Or the norm of the rows of h, rounded as NormApply stores it.
template <class T>
struct NormOf {
  using Element = T;
  static constexpr int kBlocks = 2;
  const T* h;                // [rows, columns]
  const float *mean, *rstd;  // [rows]; mean null for rms
  Weights w, b;              // [columns]; b null for rms
  __device__ __forceinline__ void load(float (&v)[kElements], int64_t row, int column, const Cut& c,
                                       bool inside) const {
    load_chunk(v, h + row * c.columns, column, inside ? c.columns : 0, c.vectors && inside);
    if (!inside) return;
    float weight[kElements], bias[kElements];
    load_factors(weight, w, column, c.vectors, 1.f);
    load_factors(bias, b, column, c.vectors, 0.f);
    const float shift = mean ? mean[row] : 0.f, scale = rstd[row];
#pragma unroll
    for (int k = 0; k < kElements; ++k) v[k] = of(v[k], shift, scale, weight[k], bias[k]);
  }
  __device__ __forceinline__ float at(int64_t row, int column, const Cut& c) const {
    float weight[1], bias[1] = {};
    load_weights(weight, w, column);
    if (b.data) load_weights(bias, b, column);
    return of(to_float(h[row * c.columns + column]), mean ? mean[row] : 0.f, rstd[row], weight[0], bias[0]);
  }
  static __device__ __forceinline__ int tile(int number, int) { return number; }

 private:
  static __device__ __forceinline__ float of(float h, float mean, float rstd, float w, float b) {
    return to_float(from_float<T>(normalised(h, mean, rstd, w, b)));
  }
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
        return f(NormOf<T>{.h = x,
                           .mean = data<const float>(op.norm.mean),
                           .rstd = data<const float>(op.norm.rstd),
                           .w = {op.norm.w.data, op.norm.w.dtype},
                           .b = {op.norm.b.data, op.norm.w.dtype}});
    }
    f(Stored<T>{x});
  });
}
}  // namespace athanor::cuda
