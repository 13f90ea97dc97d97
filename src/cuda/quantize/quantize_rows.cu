// Quantizes a matrix of 16-bit floats with one scale per row, keeping rows on the chip (Quantize::keeps_rows()).
// Layout: a thread block has a range of rows, one after the other; cp.async copies the next row into shared memory
// while the current one is quantized. A thread copies and reads the same chunks of 8 elements of each row. The amax of
// each column, needed to quantize the transpose, is found in the same pass, also in shared memory. Memory bound: x is
// read once. Deterministic: a maximum does not depend on the order. Not timed on a GPU yet.
#include <algorithm>

#include "cuda/quantize/quantize.h"
#include "cuda/quantize/quantize_cut.h"
#include "cuda/reduce.h"

namespace athanor::cuda {
namespace {

constexpr int kMostThreads = 1024, kChunks = 4;  // kChunks: per thread and row, if a block can have enough threads
constexpr int kRing = 2;                         // rows in shared memory

struct QuantizedRows {
  uint8_t* quantized;       // [rows, columns]
  void* scales;             // [rows]
  uint32_t* of_columns;     // null, or [columns] float bits, raised to the amax of each column
  int64_t rows, rows_each;  // rows_each: rows per thread block
  int columns;
  Rule rule;
};

// Raises maxima to the magnitudes of pairs of 16-bit floats. Magnitudes sort like their bits, with NaN above all.
__device__ __forceinline__ void raise(uint32_t& most, uint32_t pair) { most = __vmaxu2(most, pair & 0x7fff7fffu); }
__device__ __forceinline__ void raise(uint4& most, const uint4& v) {
  raise(most.x, v.x), raise(most.y, v.y), raise(most.z, v.z), raise(most.w, v.w);
}
template <class T>
__device__ __forceinline__ void values_of(float (&values)[kElements], const uint4& v) {
  const uint32_t words[] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int k = 0; k < kElements; ++k) values[k] = element<T>(words, k);
}

template <class T>
__global__ void __launch_bounds__(kMostThreads) encode_rows(const T* x, const QuantizedRows op) {
  ptx::wait_for_earlier_kernels();
  DYN_SMEM(memory);
  SHARED(uint32_t, smem, [kRing * kLanes]);
  const int chunks = op.columns / kElements, threads = static_cast<int>(blockDim.x);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kLanes, warp = thread / kLanes;
  const int64_t first = blockIdx.x * op.rows_each;
  const int64_t last = first + op.rows_each < op.rows ? first + op.rows_each : op.rows;
  auto* ring = reinterpret_cast<uint4*>(memory);
  uint4* of_columns = ring + kRing * chunks;
  const auto each_chunk = [&](auto f) {  // calls f for this thread's chunks
    for (int c = thread; c < chunks; c += threads) f(c);
  };
  const auto copy = [&](int64_t row) {
    uint4* to = ring + row % kRing * chunks;
    if (row < last) each_chunk([&](int c) { ptx::cp_async16(to + c, x + row * op.columns + c * kElements); });
    ptx::cp_async_commit();
  };
  if (op.of_columns) each_chunk([&](int c) { st16(of_columns + c, {0, 0, 0, 0}); });
  copy(first);
  for (int64_t row = first; row < last; ++row) {
    copy(row + 1);
    ptx::cp_async_wait<1>();
    uint4* held = ring + row % kRing * chunks;
    uint4 pairs = {0, 0, 0, 0};
    each_chunk([&](int c) {
      const uint4 v = ld16(held + c);
      raise(pairs, v);
      if (!op.of_columns) return;
      uint4 most_of_columns = ld16(of_columns + c);
      raise(most_of_columns, v);
      st16(of_columns + c, most_of_columns);
    });
    raise(pairs.x, pairs.y), raise(pairs.z, pairs.w), raise(pairs.x, pairs.z);
    uint32_t most = Max{}(magnitude(element<T>(&pairs.x, 0)), magnitude(element<T>(&pairs.x, 1)));
    most = warp_reduce(most, Max{});
    uint32_t* of_warps = smem + row % kRing * kLanes;  // other warps may still read the other half
    if (lane == 0) of_warps[warp] = most;
    __syncthreads();
    most = warp_reduce(lane < threads / kLanes ? of_warps[lane] : 0u, Max{});
    const Scaled s = scaled(most, op.rule);
    if (thread == 0) store_scale(op.scales, row, s.scale, op.rule.e8m0);
    each_chunk([&](int c) {
      float v[kElements];
      values_of<T>(v, ld16(held + c));
#pragma unroll
      for (float& value : v) value = __fmul_rn(value, s.factor);
      st8(op.quantized + row * op.columns + c * kElements, code_words(v, op.rule.e5m2));
    });
  }
  ptx::cp_async_wait<0>();  // waits for the empty group committed after the last row
  // Threads write the maxima of adjacent columns, not those of their own chunks: all updates precede the last row's
  // barrier.
  for (int c = thread; op.of_columns && c < op.columns; c += threads) {
    const uint32_t pair = reinterpret_cast<const uint32_t*>(of_columns)[c / 2];
    atomicMax(op.of_columns + c, magnitude(c % 2 ? element<T>(&pair, 1) : element<T>(&pair, 0)));
  }
}

// Splits rows among the thread blocks that an H200 holds at once. A block has several rows, so that copies run ahead
// and few blocks update the column amax.
struct RowsCut {
  static constexpr int64_t kMultiprocessors = 132, kMostBlocks = 32, kMinRows = 16;
  // Threads per SM, limited by their registers (tests/cuda/kernel_budget.txt).
  static constexpr int64_t kMostResident = 2048;
  static constexpr size_t kShared = size_t{227} << 10, kStatic = 1024;
  unsigned threads;
  size_t bytes;  // dynamic shared memory
  int64_t rows_each;
  explicit RowsCut(const Quantize& op)
      : threads(static_cast<unsigned>(std::min<int64_t>(
            kMostThreads, round_up<int64_t>(div_ceil<int64_t>(op.x.cols(), kElements * kChunks), kLanes)))),
        bytes(static_cast<size_t>(op.x.cols() * (kRing + (op.transposed ? 1 : 0))) * sizeof(uint16_t)) {
    const int64_t resident =
        std::min({kMostBlocks, kMostResident / threads, static_cast<int64_t>(kShared / (bytes + kStatic))});
    const int64_t all = kMultiprocessors * std::max<int64_t>(1, resident);
    rows_each = std::max(kMinRows, div_ceil(op.x.rows(), all));
  }
};
}  // namespace

bool rows_fit(const Quantize& op) {
  if (!op.keeps_rows() || !aligned16(op.x.data) || reinterpret_cast<uintptr_t>(op.quantized.data) % kElements != 0)
    return false;
  int device = 0, most = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  return RowsCut(op).bytes + RowsCut::kStatic <= static_cast<size_t>(most);
}

void encode_rows(const Quantize& op, const Rule& rule, uint32_t* of_columns, cudaStream_t stream) {
  const RowsCut cut(op);
  const QuantizedRows rows{.quantized = static_cast<uint8_t*>(op.quantized.data),
                           .scales = op.scales.data,
                           .of_columns = of_columns,
                           .rows = op.x.rows(),
                           .rows_each = cut.rows_each,
                           .columns = checked_columns(op.kName, op.x),
                           .rule = rule};
  const LaunchConfig config{dim3(grid_size(div_ceil(rows.rows, cut.rows_each))), dim3(cut.threads), cut.bytes, stream};
  by_type(op.x.dtype, [&]<class T>() {
    if constexpr (sizeof(T) == sizeof(uint16_t)) CUDA_CHECK(launch(encode_rows<T>, config, data<const T>(op.x), rows));
  });
}
}  // namespace athanor::cuda
