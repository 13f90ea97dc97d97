// Sums of columns: out += sum over the rows of x.
// Layout: x [N, C] row-major. A block of 8 warps sums 32 packs of columns over a range of rows: each warp reads whole
// lines of every eighth row, and shared memory combines the warps. Memory bound: x is read once; partial sums of at
// most 256 ranges go through scratch memory to a second launch. Deterministic: ranges depend on N and C alone,
// and all sums have a fixed order. Not timed on a GPU yet.
#include "cuda/column_sum.h"

#include "cuda/kernels.h"
#include "cuda/pack.h"

namespace athanor::cuda {
namespace {

constexpr int kWarps = ColumnSumCut::kWarps, kRowsInFlight = ColumnSumCut::kRowsInFlight;

template <class T, class Out = float>
struct Columns {
  Out* out;  // one range of rows: [C], added to; several: [ranges, C], overwritten
  const T* x;
  int64_t rows, rows_per_range, stride;
  int columns;
};

template <class T, class Out, int E>
__global__ void __launch_bounds__(32 * kWarps) column_sums(Columns<T, Out> a) {
  ptx::wait_for_earlier_kernels();
  constexpr int kPitch = 32 + 32 / E;  // padding: a lane writes its E neighbouring columns to different banks
  SHARED(float, sums, [kWarps][E][kPitch]);
  const int lane = static_cast<int>(threadIdx.x), warp = static_cast<int>(threadIdx.y);
  const int tile = static_cast<int>(blockIdx.x) * 32 * E, column = tile + lane * E;
  float sum[E] = {};
  if (column < a.columns) {
    const int64_t begin = blockIdx.y * a.rows_per_range;
    const int64_t end = begin + a.rows_per_range < a.rows ? begin + a.rows_per_range : a.rows;
    for (int64_t row = begin + warp; row < end; row += kWarps * kRowsInFlight) {
      Pack<T, E> v[kRowsInFlight];
#pragma unroll
      for (int k = 0; k < kRowsInFlight; ++k) {
        if (row + k * kWarps < end) v[k] = load_pack<E>(a.x + (row + k * kWarps) * a.stride + column);
      }
#pragma unroll
      for (int k = 0; k < kRowsInFlight; ++k) {
        if (row + k * kWarps >= end) break;
#pragma unroll
        for (int i = 0; i < E; ++i) sum[i] += v[k][i];
      }
    }
  }
#pragma unroll
  for (int i = 0; i < E; ++i) sums[warp][i][lane] = sum[i];
  __syncthreads();
  const int thread = warp * 32 + lane;
  if (thread >= 32 * E || tile + thread >= a.columns) return;
  float total = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) total += sums[w][thread % E][thread / E];
  if (gridDim.y == 1) {
    a.out[tile + thread] = from_float<Out>(to_float(a.out[tile + thread]) + total);
  } else {
    a.out[static_cast<size_t>(blockIdx.y) * static_cast<size_t>(a.columns) + tile + thread] = from_float<Out>(total);
  }
}

template <class T, class Out, int E>
void launch_sums(const Columns<T, Out>& a, int64_t ranges, cudaStream_t stream) {
  const dim3 grid(grid_size(div_ceil<int64_t>(a.columns, 32 * E)), grid_size(ranges));
  CUDA_CHECK(launch(column_sums<T, Out, E>, {grid, dim3(32, kWarps), 0, stream}, a));
}

template <class Out>
void add_partials(const PartialSums& s, cudaStream_t stream) {
  const Columns<float, Out> a{data<Out>(s.out), s.partials, s.rows, s.rows, s.stride, narrow<int>(s.columns)};
  if (in_packs<float>(s.columns, s.stride) && aligned16(s.partials)) {
    launch_sums<float, Out, kVector<float>>(a, 1, stream);
  } else {
    launch_sums<float, Out, 1>(a, 1, stream);
  }
}
}  // namespace

void add_partial_sums(const PartialSums& s, cudaStream_t stream) {
  if (s.rows == 0 || s.columns == 0) return;
  if (s.out.dtype == DType::bf16) {
    add_partials<bf16>(s, stream);
  } else {
    add_partials<float>(s, stream);
  }
}

void run(const ColumnSum& op, void* scratch, cudaStream_t stream) {
  const int columns = checked_columns(op.kName, op.x);
  if (op.x.numel() == 0) return;
  const ColumnSumCut ranges(op.x.rows(), columns);
  const bool direct = ranges.count == 1;
  const auto fits = [&]<class T>() { return in_packs<T>(columns) && aligned16(op.x.data); };
  by_pack(op.x.dtype, fits, [&]<class T, int E>() {
    const auto sum = [&]<class Out>(Out* out) {
      const Columns<T, Out> a{out, data<T>(op.x), op.x.rows(), ranges.rows_each, columns, columns};
      launch_sums<T, Out, E>(a, ranges.count, stream);
    };
    if (direct && op.out.dtype == DType::bf16) {
      sum(data<bf16>(op.out));
    } else {
      sum(direct ? data<float>(op.out) : static_cast<float*>(scratch));
    }
  });
  if (!direct) add_partial_sums({op.out, static_cast<const float*>(scratch), ranges.count, columns, columns}, stream);
}
}  // namespace athanor::cuda
