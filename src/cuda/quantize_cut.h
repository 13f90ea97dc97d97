// A matrix that becomes codes, and how it is cut into blocks with a scale each.
#pragma once
#include "cuda/encode.h"
#include "cuda/host_tools.h"
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

// load(): 8 elements of a row, 0 where they are not `inside`.
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
