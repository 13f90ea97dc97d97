// Sum of squares of each output, with one warp per row or one lane per column; and scaling of each output, with one
// block per tile of 2048 elements (ranges.h). Memory bound: 8 bytes of loads and 4 of stores for each element.
// Deterministic: one warp or thread block computes each sum. Not timed on a GPU yet.
#include "cuda/kernels.h"
#include "cuda/ranges.h"
#include "cuda/reduce.h"
#include "cuda/vec8.h"

namespace athanor::cuda {
namespace {

constexpr int kLanes = 32, kWarps = kTileThreads / kLanes;

struct SquaresPart {
  double* sums;
  const float* x;
  int64_t n;
  OutputRange range;
};

// Outputs in rows: block k of a part has kWarps rows, from row k * kWarps. Outputs in columns: it has kLanes columns,
// from column k * kLanes, and each warp adds every kWarps-th row.
__global__ void __launch_bounds__(kTileThreads) output_squares(const __grid_constant__ Ranges<SquaresPart> parts) {
  ptx::wait_for_earlier_kernels();
  SHARED(double, smem, [kTileThreads]);
  const int number = parts.find(blockIdx.x);
  const SquaresPart& p = parts.range[number];
  const int64_t block = blockIdx.x - parts.first_block[number], cols = p.range.cols, first = p.range.first;
  const int lane = static_cast<int>(threadIdx.x) % kLanes, warp = static_cast<int>(threadIdx.x) / kLanes;
  const int64_t first_row = first / cols, end_row = (first + p.n + cols - 1) / cols;
  double sum = 0;
  const auto add = [&](int64_t at) {
    const auto x = static_cast<double>(p.x[at]);
    sum += x * x;
  };
  if (!p.range.columns) {
    const int64_t row = first_row + block * kWarps + warp;
    if (row >= end_row) return;
    const int64_t begin = row * cols - first, end = begin + cols < p.n ? begin + cols : p.n;
    for (int64_t at = (begin > 0 ? begin : 0) + lane; at < end; at += kLanes) add(at);
    sum = warp_reduce(sum, Plus{});
    if (lane == 0) p.sums[row] += sum;
    return;
  }
  const int64_t column = block * kLanes + lane;
  for (int64_t row = first_row + warp; row < end_row && column < cols; row += kWarps) {
    const int64_t at = row * cols + column - first;
    if (at >= 0 && at < p.n) add(at);
  }
  smem[threadIdx.x] = sum;
  __syncthreads();
  if (warp != 0 || column >= cols) return;
  for (int k = 1; k < kWarps; ++k) sum += smem[k * kLanes + lane];
  p.sums[column] += sum;
}

struct ScaledPart {
  float* x;
  const float* factors;
  OutputRange range;
  Extent extent;
};

__global__ void __launch_bounds__(kTileThreads) scale_outputs(const __grid_constant__ Ranges<ScaledPart> parts) {
  ptx::wait_for_earlier_kernels();
  const int number = parts.find(blockIdx.x);
  const ScaledPart& p = parts.range[number];
  on_vec8(p.extent, blockIdx.x - parts.first_block[number], [&](auto vec8) {
    float x[kElements];
    vec8.load(x, p.x);
    const int64_t at = p.range.first + vec8.first;
    int64_t row = at / p.range.cols, column = at - row * p.range.cols;
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      if (i < vec8.count) x[i] = __fmul_rn(x[i], p.factors[p.range.columns ? column : row]);
      if (++column == p.range.cols) {
        column = 0;
        ++row;
      }
    }
    vec8.store(p.x, x);
  });
}
}  // namespace

void run(const OutputSquares& op, void*, cudaStream_t stream) {
  const auto add_part = [](Ranges<SquaresPart>& table, const OutputSquares::Part& p) {
    const OutputRange& r = p.range;
    const int64_t n = p.x.numel();
    if (n == 0) return;
    const int64_t rows = div_ceil<int64_t>(r.first + n, r.cols) - r.first / r.cols;
    table.add({data<double>(p.sums), data<float>(p.x), n, r},
              r.columns ? div_ceil<int64_t>(r.cols, kLanes) : div_ceil<int64_t>(rows, kWarps));
  };
  launch_tables(output_squares, op.parts, add_part, stream);
}

void run(const ScaleOutputs& op, void*, cudaStream_t stream) {
  const auto add_part = [](Ranges<ScaledPart>& table, const ScaleOutputs::Part& p) {
    if (p.x.numel() == 0) return;
    const Extent whole = extent(p.x.numel(), data<char>(p.x));
    table.add({data<float>(p.x), data<float>(p.factors), p.range, whole}, tiles_of(whole.n));
  };
  launch_tables(scale_outputs, op.parts, add_part, stream);
}
}  // namespace athanor::cuda
