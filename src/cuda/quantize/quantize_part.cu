// Quantizes parts of matrices (ops/quantize_part.h). Layout: a warp has 256 columns of 16 rows of the matrix, a lane 8
// elements of each row; elements outside of the part are skipped. All rows of a warp belong to the same blocks, since
// heights of blocks are multiples of 16. Memory bound: each op reads the part once. Deterministic: a maximum does not
// depend on the order, counts are integers. Not timed on a GPU yet.
#include "cuda/kernels.h"
#include "cuda/quantize/encode.h"
#include "cuda/quantize/quantize.h"

namespace athanor::cuda {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * kLanes;
constexpr int kRows = 16, kInFlight = 4;

struct Cut {
  int64_t first, end;         // range of elements of the matrix
  int64_t first_band, warps;  // first band of kRows rows; number of warps that have elements
  int columns, strips;        // strips of 256 columns
  int64_t height;             // rows of a scale block; 0: all
  int width, across;          // columns of a scale block, 0: all; blocks per row
  bool vectors;               // x is 16-byte aligned, the quantized values 8-byte aligned
};
Cut cut_of(const char* op, const MatrixPart& part, const Tensor& x, const Tensor& quantized) {
  CHECK(part.blocks.rows % kRows == 0 && (kLanes * kElements) % std::max<int64_t>(1, part.blocks.cols) == 0, op,
        ": blocks of ", part.blocks.rows, " x ", part.blocks.cols, " have no CUDA kernel");
  const Tensor matrix{nullptr, x.dtype, part.matrix};
  const auto aligned = [](const Tensor& t, size_t bytes) { return reinterpret_cast<uintptr_t>(t.data) % bytes == 0; };
  Cut c{.first = part.first,
        .end = part.first + x.numel(),
        .first_band = part.first / part.matrix[1] / kRows,
        .warps = 0,
        .columns = checked_columns(op, matrix),
        .strips = static_cast<int>(div_ceil<int64_t>(part.matrix[1], kLanes * kElements)),
        .height = part.blocks.rows,
        .width = static_cast<int>(part.blocks.cols),
        .across = static_cast<int>(part.grid()[1]),
        .vectors = aligned(x, 16) && aligned(quantized, kElements)};
  c.warps = (div_ceil(c.end, int64_t{c.columns} * kRows) - c.first_band) * c.strips;
  return c;
}

// This thread's elements. each() calls fn(values, index in the part) for 8 elements of each row.
struct Place {
  int64_t row;  // first row
  int column;
  bool any;
  __device__ __forceinline__ explicit Place(const Cut& c) {
    const int64_t warp = int64_t{blockIdx.x} * kWarps + static_cast<int>(threadIdx.x) / kLanes;
    row = (c.first_band + warp / c.strips) * kRows;
    column = (static_cast<int>(warp % c.strips) * kLanes + static_cast<int>(threadIdx.x) % kLanes) * kElements;
    any = warp < c.warps && column < c.columns;
  }
  __device__ __forceinline__ int64_t block(const Cut& c) const {
    return (c.height ? row / c.height : 0) * c.across + (c.width ? column / c.width : 0);
  }
  static __device__ __forceinline__ bool inside(const Cut& c, int64_t at) { return at >= 0 && at < c.end - c.first; }
  template <class T, class Fn>
  __device__ __forceinline__ void each(const Cut& c, const T* x, Fn fn) const {
    int64_t at = row * c.columns + column - c.first;
    for (int i = 0; any && i < kRows; i += kInFlight, at += int64_t{kInFlight} * c.columns) {
      float v[kInFlight][kElements];
#pragma unroll
      for (int r = 0; r < kInFlight; ++r) {
        const bool has = inside(c, at + r * c.columns);
        load_chunk(v[r], x + at + r * c.columns, 0, has ? kElements : 0, c.vectors && has);
      }
#pragma unroll
      for (int r = 0; r < kInFlight; ++r)
        if (inside(c, at + r * c.columns)) fn(v[r], at + r * c.columns);
    }
  }
};

template <class T>
__global__ void __launch_bounds__(kThreads)
    find_amax_of_part(uint32_t* amax, uint32_t* of_all, const T* x, const Cut c) {
  ptx::wait_for_earlier_kernels();
  const Place at(c);
  uint32_t most = 0;
  at.each(c, x, [&](const float(&v)[kElements], int64_t) {
#pragma unroll
    for (int k = 0; k < kElements; ++k) most = Max{}(most, magnitude(v[k]));
  });
  most = most > kInfinity ? kInfinity : most;
  const uint32_t of_block = over_lanes(most, c.width);
  const bool leads = c.width == 0 ? threadIdx.x % kLanes == 0 : at.column % c.width == 0;
  if (at.any && leads && of_block > 0) atomicMax(amax + at.block(c), of_block);
  if (!of_all) return;
  most = warp_reduce(most, Max{});
  if (threadIdx.x % kLanes == 0 && most > 0) atomicMax(of_all, most);
}

struct PartRule {
  Rule rule;
  const uint32_t *amax, *of_all;  // of_all: amax of the matrix for FP4, else null
  double saturates;
};

// counts: null, or zeros.
template <class T>
__global__ void __launch_bounds__(kThreads)
    encode_part(uint8_t* quantized, QuantizeCounts* counts, const T* x, const Cut c, const PartRule op) {
  ptx::wait_for_earlier_kernels();
  SHARED(unsigned, smem, [kLanes]);
  const Place at(c);
  float factor = 0, scale = 0;  // scale: NaN if the block has a non-finite value
  if (at.any) {
    const uint32_t amax = op.amax[at.block(c)];
    const Scaled own = scaled(amax, op.rule);
    factor = own.factor, scale = own.scale;
    if (op.of_all) {
      const Scaled whole = whole_scale(*op.of_all);
      const float exact = __fmul_rn(__fdiv_rn(__uint_as_float(amax), 6.f), whole.factor);
      const auto bits = static_cast<uint8_t>(whole.factor == 0 ? 0u : code_pair(exact, 0, false));
      factor = bits == 0 ? 0 : __fdiv_rn(whole.factor, e4m3_value(bits));
      scale = __fmul_rn(e4m3_value(bits), whole.scale);
    } else if (op.rule.given && *op.rule.given > 0) {
      factor = *op.rule.given;
      if (amax < kInfinity) scale = __fdiv_rn(1.f, factor);
    }
  }
  const bool finite = magnitude(scale) <= kInfinity;
  unsigned values = 0, saturated = 0, underflowed = 0, most = 0;
  at.each(c, x, [&](const float(&v)[kElements], int64_t element) {
    uint32_t words[2] = {0, 0};
#pragma unroll
    for (int k = 0; k < kElements; k += 2) {
      const float a = __fmul_rn(v[k], factor), b = __fmul_rn(v[k + 1], factor);
      const uint32_t pair =
          op.of_all ? e2m1_code(a) | static_cast<uint32_t>(e2m1_code(b)) << 8 : code_pair(a, b, op.rule.e5m2);
      words[k / 4] |= pair << 8 * (k % 4);
    }
    if (counts) {
      const uint32_t no_sign = op.of_all ? 0x7u : 0x7fu;
#pragma unroll
      for (int k = 0; k < kElements; ++k) {
        const uint32_t m = magnitude(v[k]);
        most = Max{}(most, m);
        if (m == 0 || !finite) continue;
        ++values;
        if (scale > 0 && static_cast<double>(__uint_as_float(m)) > static_cast<double>(scale) * op.saturates)
          ++saturated;
        if ((words[k / 4] >> 8 * (k % 4) & no_sign) == 0) ++underflowed;
      }
    }
    if (c.vectors) return st8(quantized + element, {words[0], words[1]});
#pragma unroll
    for (int k = 0; k < kElements; ++k) quantized[element + k] = static_cast<uint8_t>(words[k / 4] >> 8 * (k % 4));
  });
  if (!counts) return;
  values = block_reduce(values, smem, Plus{});
  saturated = block_reduce(saturated, smem, Plus{});
  underflowed = block_reduce(underflowed, smem, Plus{});
  most = block_reduce(most, smem, Max{});
  if (threadIdx.x != 0) return;
  atomicAdd(&counts->values, static_cast<unsigned long long>(values));
  atomicAdd(&counts->saturated, static_cast<unsigned long long>(saturated));
  atomicAdd(&counts->underflowed, static_cast<unsigned long long>(underflowed));
  atomicMax(&counts->amax, most);
}

LaunchConfig warps(const Cut& c, cudaStream_t stream) {
  return {dim3(grid_size(div_ceil<int64_t>(c.warps, kWarps))), dim3(kThreads), 0, stream};
}
}  // namespace

void run(const AmaxOfPart& op, void*, cudaStream_t stream) {
  if (op.x.numel() == 0) return;
  const Cut c = cut_of(op.kName, op.part, op.x, {});
  by_type(op.x.dtype, [&]<class T>() {
    CUDA_CHECK(launch(find_amax_of_part<T>, warps(c, stream), data<uint32_t>(op.amax), data<uint32_t>(op.of_all),
                      data<const T>(op.x), c));
  });
}

void run(const QuantizePart& op, void* scratch, cudaStream_t stream) {
  if (op.x.numel() == 0) return;
  auto* counts = op.statistics ? static_cast<QuantizeCounts*>(scratch) : nullptr;
  const Cut c = cut_of(op.kName, op.part, op.x, op.quantized);
  const PartRule rule{.rule = {.most_code = max_code(op.quantized.dtype),
                               .e5m2 = op.quantized.dtype == DType::f8_e5m2,
                               .power_of_two = op.power_of_two,
                               .e8m0 = false,
                               .given = data<const float>(op.factor),
                               .amax = nullptr},
                      .amax = data<const uint32_t>(op.amax),
                      .of_all = data<const uint32_t>(op.of_all),
                      .saturates = saturates(op.quantized.dtype)};
  if (counts) CUDA_CHECK(cudaMemsetAsync(counts, 0, sizeof *counts, stream));
  by_type(op.x.dtype, [&]<class T>() {
    CUDA_CHECK(launch(encode_part<T>, warps(c, stream), static_cast<uint8_t*>(op.quantized.data), counts,
                      data<const T>(op.x), c, rule));
  });
  if (counts) add_counts(op.statistics, counts, stream);
}
}  // namespace athanor::cuda
