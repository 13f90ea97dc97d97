// Stable radix sort of row numbers by index, least significant digit first; two passes of up to 9 bits for usual
// vocabularies.
// A pass is three launches: count each digit per tile of rows, prefix sums that give the position of each tile's rows,
// and the move. Within a tile a warp ranks 32 rows at a time by comparing digits among its lanes, with its own
// counters, so that the order does not depend on scheduling. Latency bound, but short compared with the kernels that
// use it.
#include "cuda/index_sort.h"

#include <algorithm>

#include "cuda/host_tools.h"
#include "cuda/scratch.h"

namespace athanor::cuda {
namespace {

constexpr int kWarps = 8, kThreads = 32 * kWarps;
constexpr int kRounds = 8;  // rounds of 32 rows per warp
constexpr int kTile = SortCut::kTile;
static_assert(kTile == kThreads * kRounds);

struct Pass {
  const int *index, *row;  // row: null for 0, 1, 2, ...
  int *index_out, *row_out;
  int* counts;  // [digits, tiles] rows; after the prefix sums, position of the first of them
  int rows, shift, bits;
  int first;      // subtracted from each index
  unsigned last;  // maximum index, to which larger ones are clamped

  __device__ __forceinline__ int at(int i) const {
    return static_cast<int>(min(static_cast<unsigned>(index[i]) - static_cast<unsigned>(first), last));
  }
};

struct Ranks {
  int digit[kRounds];   // -1 past the end
  int before[kRounds];  // earlier rows with that digit in the same warp
};

// counters: [kWarps, digits], rows per digit and warp.
__device__ __forceinline__ Ranks rank_rows(const Pass& a, int* counters) {
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  for (int i = thread; i < kWarps << a.bits; i += kThreads) counters[i] = 0;
  __syncthreads();
  int* own = counters + (warp << a.bits);
  const unsigned lanes_below = (1u << lane) - 1;
  const int first = static_cast<int>(blockIdx.x) * kTile + warp * 32 * kRounds + lane;
  Ranks ranks;
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
    const bool exists = first + 32 * r < a.rows;
    ranks.digit[r] = exists ? a.at(first + 32 * r) >> a.shift & ((1 << a.bits) - 1) : -1;
  }
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
    const int digit = ranks.digit[r];
    const unsigned same = __match_any_sync(~0u, digit);
    const int before = digit < 0 ? 0 : own[digit];
    __syncwarp();  // all lanes have read
    if (digit >= 0 && (same & lanes_below) == 0) own[digit] = before + __popc(same);
    __syncwarp();  // the write is visible in the next round
    ranks.before[r] = before + __popc(same & lanes_below);
  }
  return ranks;
}

__global__ void __launch_bounds__(kThreads) count_digits(Pass a) {
  ptx::wait_for_earlier_kernels();
  DYN_SMEM(raw);
  int* counters = reinterpret_cast<int*>(raw);
  (void)rank_rows(a, counters);
  __syncthreads();
  for (int d = static_cast<int>(threadIdx.x); d < 1 << a.bits; d += kThreads) {
    int sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += counters[(w << a.bits) + d];
    a.counts[static_cast<size_t>(d) * gridDim.x + blockIdx.x] = sum;
  }
}

// Exclusive prefix sum in place; one block, `each` consecutive values per thread.
__global__ void __launch_bounds__(1024) sums_before(int* values, int count, int each) {
  ptx::wait_for_earlier_kernels();
  SHARED(int, warp_sums, [32]);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const int begin = min(thread * each, count), end = min(begin + each, count);
  int own = 0;
  for (int i = begin; i < end; ++i) own += values[i];
  int sum = own;  // inclusive prefix sum over the lanes
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const int other = __shfl_up_sync(~0u, sum, offset);
    if (lane >= offset) sum += other;
  }
  if (lane == 31) warp_sums[thread / 32] = sum;
  __syncthreads();
  int before = sum - own;
  for (int w = 0; w < thread / 32; ++w) before += warp_sums[w];
  for (int i = begin; i < end; ++i) {
    const int value = values[i];
    values[i] = before;
    before += value;
  }
}

__global__ void __launch_bounds__(kThreads) place_rows(Pass a) {
  ptx::wait_for_earlier_kernels();
  DYN_SMEM(raw);
  int* counters = reinterpret_cast<int*>(raw);
  const Ranks ranks = rank_rows(a, counters);
  __syncthreads();
  // counters become each warp's first position
  for (int d = static_cast<int>(threadIdx.x); d < 1 << a.bits; d += kThreads) {
    int place = a.counts[static_cast<size_t>(d) * gridDim.x + blockIdx.x];
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const int count = counters[(w << a.bits) + d];
      counters[(w << a.bits) + d] = place;
      place += count;
    }
  }
  __syncthreads();
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32;
  const int first = static_cast<int>(blockIdx.x) * kTile + warp * 32 * kRounds + thread % 32;
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
    if (ranks.digit[r] < 0) break;
    const int from = first + 32 * r, to = counters[(warp << a.bits) + ranks.digit[r]] + ranks.before[r];
    a.index_out[to] = a.at(from);
    a.row_out[to] = a.row ? a.row[from] : from;
  }
}

}  // namespace

SortedIndices sort_indices(const Indices& indices, void* scratch, cudaStream_t stream) {
  CHECK(indices.rows < int64_t{1} << 30, "sorting ", indices.rows, " rows: beyond 32-bit indices");
  const SortCut digits(indices.limit);
  const int rows = static_cast<int>(indices.rows);
  const unsigned tiles = grid_size(div_ceil<int64_t>(rows, kTile));
  int* const words = static_cast<int*>(scratch);
  int* const buffers[2] = {words, words + 2 * indices.rows};  // each has indices, then rows
  const int count = static_cast<int>(tiles) << digits.bits;
  const int scan_threads = std::clamp(round_up(div_ceil(count, 8), 32), 32, 1024);
  const size_t shared_bytes = (size_t{kWarps} << digits.bits) * sizeof(int);
  CHECK(indices.first + indices.limit <= int64_t{1} << 31, "sorting by an index of ", indices.first + indices.limit,
        ": beyond 32 bits");
  Pass pass{.index = indices.of_row,
            .counts = words + 4 * indices.rows,
            .rows = rows,
            .bits = digits.bits,
            .first = static_cast<int>(indices.first),
            .last = static_cast<unsigned>(indices.limit - 1)};
  for (int p = 0; p < digits.passes; ++p) {
    pass.shift = p * digits.bits;
    pass.index_out = buffers[p % 2];
    pass.row_out = pass.index_out + rows;
    CUDA_CHECK(launch(count_digits, {dim3(tiles), dim3(kThreads), shared_bytes, stream}, pass));
    const LaunchConfig one_block{dim3(1), dim3(static_cast<unsigned>(scan_threads)), 0, stream};
    CUDA_CHECK(launch(sums_before, one_block, pass.counts, count, div_ceil(count, scan_threads)));
    CUDA_CHECK(launch(place_rows, {dim3(tiles), dim3(kThreads), shared_bytes, stream}, pass));
    pass.index = pass.index_out;
    pass.row = pass.row_out;
    pass.first = 0;
  }
  return {pass.index, pass.row};
}
}  // namespace athanor::cuda
