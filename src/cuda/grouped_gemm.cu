// Grouped GEMM of a mixture of experts: rows times their expert's matrix, and the gradients of these matrices.
//   forward: d = a W_e^T;  input gradient: d = a W_e;  weight gradient: d_e += a_e^T b_e
// Layout: a block computes a 32 x 32 tile of d from tiles of both operands in shared memory, in f32. There are R / 32 +
// E row tiles, the maximum for any split of the rows among experts; a block finds its expert and rows from the offsets
// in device memory, and surplus blocks return. Sums run over K in order. A plain kernel without tensor cores, for any
// size and type that gemm/grouped_wgmma.cu does not support: not tuned and not timed on a GPU yet.
#include "cuda/gemm/grouped_wgmma.h"
#include "cuda/host_tools.h"
#include "cuda/kernels.h"
#include "cuda/ptx/ptx.h"
#include "cuda/types.h"

namespace athanor::cuda {
namespace {

constexpr int kSide = 32, kRows = 8, kThreads = kSide * kRows;  // each thread has kSide / kRows elements of a column
constexpr int kEach = kSide / kRows;

struct Group {
  int expert, begin, end;  // rows of a tile; expert -1: none
};

// Finds expert and rows of tile `number`, counting all experts' tiles. Every thread gets the same result.
__device__ __forceinline__ Group find_group(const int* offsets, int experts, int number) {
  for (int e = 0; e < experts; ++e) {
    const int begin = offsets[e], end = offsets[e + 1], tiles = (end - begin + kSide - 1) / kSide;
    if (number < tiles) return {e, begin + number * kSide, min(begin + (number + 1) * kSide, end)};
    number -= tiles;
  }
  return {-1, 0, 0};
}

// Rounds f32 operands as tensor cores do: see round_tf32 in tensor/half.h.
__device__ __forceinline__ float rounded(float x, bool tf32) {
  const uint32_t bits = __float_as_uint(x);
  const bool rounds = tf32 && (bits & 0x7f800000u) != 0x7f800000u;
  return __uint_as_float(rounds ? (bits + 0x1000u) & 0xffffe000u : bits);
}
template <class T>
__device__ __forceinline__ float factor(const T* p, bool tf32) {
  if constexpr (std::is_same_v<T, float>) {
    return rounded(*p, tf32);
  } else {
    return to_float(*p);
  }
}

template <class A, class D>
struct Factors {
  D* d;
  const A *a, *b;
  const int* offsets;
  int experts, outputs, inputs;
  bool tf32;
};

// sums[i] += the dot product of row threadIdx.y + i kRows of a's tile and column threadIdx.x of b's tile.
__device__ __forceinline__ void multiply_tiles(float (&sums)[kEach], const float (*a)[kSide + 1],
                                               const float (*b)[kSide + 1]) {
  const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
  for (int k = 0; k < kSide; ++k) {
    const float other = b[k][x];
#pragma unroll
    for (int i = 0; i < kEach; ++i) sums[i] += a[y + i * kRows][k] * other;
  }
}

// transposed: b is W [outputs, inputs], used transposed, and K = inputs (forward); otherwise K = outputs (input
// gradient).
template <class A, class D, bool transposed>
__global__ void __launch_bounds__(kThreads) grouped_rows(Factors<A, D> f) {
  ptx::wait_for_earlier_kernels();
  SHARED(float, a, [kSide][kSide + 1]);
  SHARED(float, b, [kSide][kSide + 1]);
  const Group group = find_group(f.offsets, f.experts, static_cast<int>(blockIdx.y));
  if (group.expert < 0) return;
  const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
  const int terms = transposed ? f.inputs : f.outputs, columns = transposed ? f.outputs : f.inputs;
  const int column = static_cast<int>(blockIdx.x) * kSide;
  const A* w = f.b + static_cast<int64_t>(group.expert) * f.outputs * f.inputs;
  float sums[kEach] = {};
  for (int k = 0; k < terms; k += kSide) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int line = y + i * kRows, row = group.begin + line;
      const bool in_a = row < group.end && k + x < terms;
      a[line][x] = in_a ? factor(f.a + static_cast<int64_t>(row) * terms + k + x, f.tf32) : 0.f;
      if constexpr (transposed) {
        const bool in_b = column + line < columns && k + x < terms;
        b[x][line] = in_b ? factor(w + static_cast<int64_t>(column + line) * terms + k + x, f.tf32) : 0.f;
      } else {
        const bool in_b = k + line < terms && column + x < columns;
        b[line][x] = in_b ? factor(w + static_cast<int64_t>(k + line) * columns + column + x, f.tf32) : 0.f;
      }
    }
    __syncthreads();
    multiply_tiles(sums, a, b);
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int row = group.begin + y + i * kRows;
    if (row < group.end && column + x < columns)
      f.d[static_cast<int64_t>(row) * columns + column + x] = from_float<D>(sums[i]);
  }
}

// One block per tile of an expert's matrix. For experts without rows nothing is read or written.
template <class A, class D>
__global__ void __launch_bounds__(kThreads) grouped_weights(Factors<A, D> f) {
  ptx::wait_for_earlier_kernels();
  SHARED(float, a, [kSide][kSide + 1]);
  SHARED(float, b, [kSide][kSide + 1]);
  const int expert = static_cast<int>(blockIdx.z), begin = f.offsets[expert], end = f.offsets[expert + 1];
  if (begin == end) return;
  const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
  const int output = static_cast<int>(blockIdx.y) * kSide, input = static_cast<int>(blockIdx.x) * kSide;
  float sums[kEach] = {};
  for (int k = begin; k < end; k += kSide) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int line = y + i * kRows;
      const int64_t row = k + line;
      const bool in_a = row < end && output + x < f.outputs, in_b = row < end && input + x < f.inputs;
      a[x][line] = in_a ? factor(f.a + row * f.outputs + output + x, f.tf32) : 0.f;
      b[line][x] = in_b ? factor(f.b + row * f.inputs + input + x, f.tf32) : 0.f;
    }
    __syncthreads();
    multiply_tiles(sums, a, b);
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int line = output + y + i * kRows;
    if (line >= f.outputs || input + x >= f.inputs) continue;
    D* d = f.d + (static_cast<int64_t>(expert) * f.outputs + line) * f.inputs + input + x;
    *d = from_float<D>(to_float(*d) + sums[i]);
  }
}

template <class A, class D>
void launch_grouped(const GroupedGemm& op, cudaStream_t stream) {
  const Factors<A, D> f{data<D>(op.d),
                        data<A>(op.a),
                        data<A>(op.b),
                        data<int>(op.offsets),
                        static_cast<int>(op.experts()),
                        static_cast<int>(op.outputs()),
                        static_cast<int>(op.inputs()),
                        op.tf32};
  const auto tiles = [](int64_t n) { return grid_size(div_ceil<int64_t>(n, kSide)); };
  const bool forward = op.role == Grouped::forward, of_weights = op.role == Grouped::weight_gradient;
  const int64_t row_tiles = op.rows() / kSide + op.experts();
  const dim3 grid = of_weights ? dim3(tiles(op.inputs()), tiles(op.outputs()), grid_size(op.experts()))
                               : dim3(tiles(forward ? op.outputs() : op.inputs()), grid_size(row_tiles));
  CHECK(grid.y < 65536 && grid.z < 65536, op.kName, ": ", op.rows(), " rows, ", op.outputs(), " outputs and ",
        op.experts(), " experts are more tiles than a grid has; use smaller micro-batches");
  const LaunchConfig config{grid, dim3(kSide, kRows), 0, stream};
  if (of_weights)
    CUDA_CHECK(launch(grouped_weights<A, D>, config, f));
  else if (forward)
    CUDA_CHECK(launch(grouped_rows<A, D, true>, config, f));
  else
    CUDA_CHECK(launch(grouped_rows<A, D, false>, config, f));
}
}  // namespace

void run(const GroupedGemm& op, void* scratch, cudaStream_t stream) {
  if (op.rows() == 0 || op.d.numel() == 0) return;
  CHECK(op.a.dtype == op.b.dtype && op.rows() < int64_t{1} << 31, op.kName, ": factors of ", op.a.dtype, " and ",
        op.b.dtype, ", ", op.rows(), " rows; expected one type and 32-bit indices");
  if (grouped_wgmma_takes(op)) return run_grouped_by_wgmma(op, stream);
  if (op.h) return in_parts(op, [&](const auto& part) { run(part, scratch, stream); });
  by_type(op.a.dtype, [&]<class A>() { by_type(op.d.dtype, [&]<class D>() { launch_grouped<A, D>(op, stream); }); });
}
}  // namespace athanor::cuda
