// A matrix to be quantized, and how it is split into blocks that share a scale.
#pragma once
#include "cuda/host_tools.h"
#include "cuda/pack.h"
#include "cuda/quantize/encode.h"
#include "cuda/vectors.h"
#include "ops/quantize.h"
namespace athanor::cuda {

// A matrix in scale blocks of `height` by `width`, and how it is split among thread blocks: see the head of
// quantize.cu.
struct Cut {
  int64_t rows;
  int columns, height, width;  // height and width of a scale block; 0: all
  int across;                  // scale blocks per row of the matrix
  int band, tiles;             // rows per band; tiles of 256 columns per row
  bool vectors;
};

// load() reads 8 elements of a row, or zeros if not `inside`.
template <class T>
struct Matrix {
  const T* x;  // [rows, columns]
  __device__ __forceinline__ void load(float (&v)[kElements], int64_t row, int column, const Cut& c,
                                       bool inside) const {
    load_chunk(v, x + row * c.columns, column, inside ? c.columns : 0, c.vectors && inside);
  }
  __device__ __forceinline__ float at(int64_t row, int column, const Cut& c) const {
    return to_float(x[row * c.columns + column]);
  }
};
}  // namespace athanor::cuda
