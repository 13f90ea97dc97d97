// Tiles of 16-bit rows for attention on tensor cores: cp.async into shared memory, fragments by ldmatrix, GEMMs by
// mma.sync m16n8k16, and the accumulators' layout.
#pragma once
#include "cuda/attention/rows.h"
#include "cuda/lanes.h"
#include "cuda/ptx/ptx.h"
namespace athanor::cuda::attention {

// Rows are padded by 16 bytes, so that the 8 rows of a fragment are in different banks.
template <int D>
constexpr int kPitch = D + 8;

// tile [Rows, D] = the rows of a tensor from `first` on; zeros from `limit` on and past the head's `dim` columns.
template <int Rows, int D, class T>
__device__ __forceinline__ void load_tile(T* tile, const T* tensor, int64_t stride, int first, int limit, int dim) {
  constexpr int kChunks = D / 8;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < Rows * kChunks; i += static_cast<int>(blockDim.x)) {
    const int row = i / kChunks, column = i % kChunks * 8;
    const bool valid = first + row < limit && column < dim;
    ptx::cp_async16(tile + row * kPitch<D> + column, valid ? tensor + (first + row) * stride + column : tensor, valid);
  }
}

// ---- accumulators [16 R, N] of a warp: element (r, n, 2h + e) is row 16r + 8h + lane / 4 and the thread's column
// c = 2n + e, which is column 8n + lane % 4 * 2 + e of the tile

template <int R, int N>
using Accumulators = float[R][N / 8][4];

// Calls visit(element, r, h, c) for all elements.
template <int R, int N, class F>
__device__ __forceinline__ void for_elements(Accumulators<R, N>& a, F visit) {
#pragma unroll
  for (int r = 0; r < R; ++r) {
#pragma unroll
    for (int n = 0; n < N / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) visit(a[r][n][i], r, i / 2, 2 * n + i % 2);
    }
  }
}

// Sets elements of masked pairs to `value`. seen: visible rows of each of the warp's rows; first: the other side's row
// in column 0.
template <int R, int N, class Row>
__device__ __forceinline__ void hide(Accumulators<R, N>& a, const Row* seen, int first, float value) {
#pragma unroll
  for (int r = 0; r < R; ++r) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const Row x = load_seen(seen + r * 16 + h * 8 + lane_id() / 4);
#pragma unroll
      for (int n = 0; n < N / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int other = first + n * 8 + lane_id() % 4 * 2 + e;
          if constexpr (std::is_same_v<Row, Seen>) {
            if (other < x.first || other >= x.last) a[r][n][2 * h + e] = value;
          } else if (!sees(x, other)) {
            a[r][n][2 * h + e] = value;
          }
        }
      }
    }
  }
}

// Sets elements of masked pairs to 0, unless `all` says that no pair is masked.
template <int R, int N, class Row>
__device__ __forceinline__ void hide_unseen(Accumulators<R, N>& a, const Row* seen, int first, bool all) {
  if (!all) hide<R, N>(a, seen, first, 0.f);
}

// ---- GEMMs

template <class T>
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (std::is_same_v<T, bf16>) {
    ptx::mma_bf16(d, a, b0, b1);
  } else {
    ptx::mma_f16(d, a, b0, b1);
  }
}

// s [16 R, N] += A B^T: rows of the tiles a [16 R, D] and b [N, D].
template <int D, int R, int N, class T>
__device__ __forceinline__ void multiply_rows(Accumulators<R, N>& s, const T* a, const T* b) {
  const int lane = lane_id();
  const T* a_row = a + lane % 16 * kPitch<D> + lane / 16 * 8;
  const T* b_row = b + (lane % 8 + lane / 16 * 8) * kPitch<D> + lane / 8 % 2 * 8;
#pragma unroll
  for (int d = 0; d < D; d += 16) {
    uint32_t x[R][4];
#pragma unroll
    for (int r = 0; r < R; ++r) ptx::ldmatrix(x[r], a_row + r * 16 * kPitch<D> + d);
#pragma unroll
    for (int n = 0; n < N; n += 16) {
      uint32_t y[4];
      ptx::ldmatrix(y, b_row + n * kPitch<D> + d);
#pragma unroll
      for (int r = 0; r < R; ++r) {
        mma<T>(s[r][n / 8], x[r], y[0], y[1]);
        mma<T>(s[r][n / 8 + 1], x[r], y[2], y[3]);
      }
    }
  }
}

// o [16 R, D] += W B: weights w [16 R, N] rounded to T, tile b [N, D].
template <int D, int R, int N, class T>
__device__ __forceinline__ void multiply_columns(Accumulators<R, D>& o, const Accumulators<R, N>& w, const T* b) {
  const int lane = lane_id();
  const T* b_row = b + lane % 16 * kPitch<D> + lane / 16 * 8;
#pragma unroll
  for (int n = 0; n < N; n += 16) {
    uint32_t x[R][4];
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* pair = &w[r][n / 8 + i / 2][i % 2 * 2];
        x[r][i] = word_of<T>(pair[0], pair[1]);
      }
    }
#pragma unroll
    for (int d = 0; d < D; d += 16) {
      uint32_t y[4];
      ptx::ldmatrix<4, true>(y, b_row + n * kPitch<D> + d);
#pragma unroll
      for (int r = 0; r < R; ++r) {
        mma<T>(o[r][d / 8], x[r], y[0], y[1]);
        mma<T>(o[r][d / 8 + 1], x[r], y[2], y[3]);
      }
    }
  }
}

// Stores the warp's rows as whole 16-byte chunks, through its own rows of a tile in shared memory. rows: number of rows
// that exist.
template <int D, int R, class T>
__device__ __forceinline__ void store_rows(T* to, int64_t stride, int rows, int dim, T* tile,
                                           Accumulators<R, D>& values, const float (&factor)[R][2]) {
  constexpr int kChunks = D / 8;
  const int lane = lane_id();
  __syncwarp();  // reads of these rows' fragments are done
#pragma unroll
  for (int r = 0; r < R; ++r) {
#pragma unroll
    for (int n = 0; n < kChunks; ++n) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float f = factor[r][h];
        st4(tile + (r * 16 + h * 8 + lane / 4) * kPitch<D> + n * 8 + lane % 4 * 2,
            word_of<T>(values[r][n][2 * h] * f, values[r][n][2 * h + 1] * f));
      }
    }
  }
  __syncwarp();
  for (int i = lane; i < R * 16 * kChunks; i += 32) {
    const int row = i / kChunks, column = i % kChunks * 8;
    if (row < rows && column < dim) st16(to + row * stride + column, ld16(tile + row * kPitch<D> + column));
  }
}

// Calls f.operator()<D>() with the smallest D that holds the head; 16-bit types only.
template <class F>
void by_head_dim(int dim, F f) {
  if (dim <= 64) {
    f.template operator()<64>();
  } else if (dim <= 96) {
    f.template operator()<96>();
  } else if (dim <= 128) {
    f.template operator()<128>();
  } else {
    f.template operator()<256>();
  }
}
template <class T>
bool tensor_cores_take(const Inputs<T>& in) {
  return in.vectors && in.dim <= 256 && in.scale > 0 && in.softcap == 0;
}
}  // namespace athanor::cuda::attention
