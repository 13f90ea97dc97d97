// Grouped GEMMs of a mixture of experts by warpgroups (sm_90a).
//   forward: d = a W_e^T;  input gradient: d = a W_e;  weight gradient: d_e += a_e^T b_e
//   forward with SwiGLU: d = [gate | up] = a W_e^T, and h = weight silu(gate) up
// Layout: persistent blocks loop over the tiles of all experts, which have 128 rows and 256 columns of d or of an
// expert's d_e; with SwiGLU these are 128 columns of gate and the same 128 of up, so that a thread's registers hold
// both. Blocks find their tiles from the offsets in device memory, so nothing depends on the host. One warp copies 64
// elements along K of a and b at a time into a ring by TMA; two warpgroups multiply 64 rows each by wgmma, with the
// sums in registers. A tile at the end of an expert's rows also reads rows of the next expert: the rows of d computed
// from them are not stored; along K, in the weight gradient, they are replaced by zeros in shared memory. Compute bound
// from some 300 rows per expert on. Deterministic: a sum is over K in order. No GPU has run it yet.
#include "cuda/gemm/grouped_wgmma.h"

#include "cuda/activation.h"
#include "cuda/gemm/wgmma_tiles.h"
#include "cuda/host_tools.h"
#include "cuda/scratch.h"

namespace athanor::cuda {
namespace {

constexpr int kBarrier = 1;          // named barrier of the consumers
constexpr int kHalf = kColumns / 2;  // with SwiGLU the columns of gate in a tile

struct Experts {
  const int* offsets;  // [experts + 1]
  int experts, outputs, inputs;
};
// No epilogue.
struct Plain {
  static constexpr int kWidth = kColumns;  // columns of a tile, of d or of gate
};
template <class T>
struct Swiglu {
  static constexpr int kWidth = kHalf;
  T* h;                  // [rows, outputs / 2]
  const float* weights;  // [slots]
  const int* slots;      // [rows]
};
template <class Epilogue>
constexpr bool kGated = !std::is_same_v<Epilogue, Plain>;
template <Grouped role>
struct Maps {
  CUtensorMap a, b;
};

template <class T>
struct Smem {  // dynamic shared memory
  Slot<T> slots[kSlots];
  T panels[kWarps][kWarpRows * kBoxColumns];
};

#if PTX_SM90A
struct Tile {
  int expert, row, column;  // row, column: first row and column in d, or in d_e for the weight gradient
  int begin, end;           // rows of the expert
};

// Calls visit(tile) for each of this block's tiles. An expert's tiles are numbered column by column, so that blocks
// which run at the same time share columns of W.
template <Grouped role, class Epilogue, class F>
__device__ __forceinline__ void for_experts(const Experts& x, F visit) {
  constexpr bool kWeights = role == Grouped::weight_gradient;
  constexpr int kWidth = Epilogue::kWidth;
  const int width = role == Grouped::forward ? x.outputs / (kColumns / kWidth) : x.inputs;
  const int columns = (width + kWidth - 1) / kWidth;
  int expert = 0, before = 0, begin = x.offsets[0], end = x.offsets[1];  // before: tiles of earlier experts
  for (int i = static_cast<int>(blockIdx.x);; i += static_cast<int>(gridDim.x)) {
    int rows = 0;  // tiles along the rows
    while (true) {
      rows = ((kWeights ? (begin < end ? x.outputs : 0) : end - begin) + kRows - 1) / kRows;
      if (i - before < rows * columns) break;
      before += rows * columns;
      if (++expert == x.experts) return;
      begin = end, end = x.offsets[expert + 1];
    }
    const int within = i - before;
    visit(Tile{expert, (kWeights ? 0 : begin) + within % rows * kRows, within / rows * kWidth, begin, end});
  }
}

template <Grouped role>
__device__ __forceinline__ int steps_of(const Experts& x, const Tile& tile) {
  const int terms = role == Grouped::forward          ? x.inputs
                    : role == Grouped::input_gradient ? x.outputs
                                                      : tile.end - tile.begin;
  return (terms + kTerms - 1) / kTerms;
}

template <class Epilogue, Grouped role, class T>
__device__ __forceinline__ void produce(Smem<T>& smem, Ring<kSlots>& ring, const Maps<role>& maps, const Experts& x) {
  PipelineState<kSlots> pipe;
  for_experts<role, Epilogue>(x, [&](const Tile& tile) {
    const int steps = steps_of<role>(x, tile);
#pragma unroll 1
    for (int step = 0; step < steps; ++step)
      ring.fill(pipe, [&](int i) {
        Slot<T>& slot = smem.slots[i];
        uint64_t* full = &ring.full[i];
        const int k = step * kTerms;
        ptx::mbar_expect_bytes(full, sizeof(Slot<T>));
        if constexpr (role == Grouped::weight_gradient) {
#pragma unroll
          for (int c = 0; c < kRows / kBoxColumns; ++c)
            ptx::tma_load(slot.a + c * kPanel, &maps.a, full, tile.row + c * kBoxColumns, tile.begin + k);
        } else {
          ptx::tma_load(slot.a, &maps.a, full, k, tile.row);
        }
        if constexpr (role == Grouped::forward) {
          const int row = tile.expert * x.outputs + tile.column;
          ptx::tma_load(slot.b, &maps.b, full, k, row);
          if constexpr (kGated<Epilogue>) ptx::tma_load(slot.b + kHalf * kTerms, &maps.b, full, k, row + x.outputs / 2);
        } else {
          const int row = role == Grouped::weight_gradient ? tile.begin + k : tile.expert * x.outputs + k;
#pragma unroll
          for (int c = 0; c < kColumns / kBoxColumns; ++c)
            ptx::tma_load(slot.b + c * kPanel, &maps.b, full, tile.column + c * kBoxColumns, row);
        }
      });
  });
}

// Replaces rows from `first` on of all panels of a slot by zeros; called by all consumers.
template <class T>
__device__ __forceinline__ void clear_rows(Slot<T>& slot, int first) {
  constexpr int kChunks = kRowBytes / 16, kAll = (kRows + kColumns) / kBoxColumns;
  const int chunks = (kTerms - first) * kChunks;  // 16-byte chunks to clear per panel
  auto* bytes = reinterpret_cast<unsigned char*>(&slot);
  for (int i = static_cast<int>(threadIdx.x); i < chunks * kAll; i += kConsumers)
    st16(bytes + i / chunks * kPanel * static_cast<int>(sizeof(T)) + first * kRowBytes + i % chunks * 16,
         uint4{0, 0, 0, 0});
  ptx::fence_proxy_async();
  ptx::bar_sync(kBarrier, kConsumers);
}

template <Grouped role, class T>
__device__ __forceinline__ void multiply(Sums& sums, Smem<T>& smem, Ring<kSlots>& ring, PipelineState<kSlots>& pipe,
                                         int group, uint32_t steps, int terms) {
  constexpr bool kWeights = role == Grouped::weight_gradient;
  sum_steps(sums, ring, pipe, steps, [&](int slot, uint32_t step) {
    if constexpr (kWeights) {
      const int left = terms - static_cast<int>(step) * kTerms;
      if (left < kTerms) clear_rows(smem.slots[slot], left);
    }
    constexpr uint32_t kAtoms = kPanel * sizeof(T);  // bytes from one panel to the next
    const uint64_t a = ptx::matrix_descriptor(smem.slots[slot].a + group * kGroupRows * kTerms);
    const uint64_t b = ptx::matrix_descriptor(smem.slots[slot].b, {.leading = role == Grouped::forward ? 16 : kAtoms});
    ptx::wgmma_fence(sums);
#pragma unroll
    for (int k = 0; k < kTerms / 16; ++k) {  // 32 bytes of each row of a K-major operand, or 16 rows of a panel
      const bool adds = step > 0 || k > 0;
      if constexpr (role == Grouped::forward)
        ptx::wgmma<T>(sums, a + 2 * k, b + 2 * k, adds);
      else if constexpr (role == Grouped::input_gradient)
        ptx::wgmma<T, ptx::Major::kK, ptx::Major::kRows>(sums, a + 2 * k, b + k * kRowBytes, adds);
      else
        ptx::wgmma<T, ptx::Major::kRows, ptx::Major::kRows>(sums, a + k * kRowBytes, b + k * kRowBytes, adds);
    }
  });
}

// Rows of a result: a matrix with `columns` columns and `stride` elements from one row to the next. Rows from `end` on
// are not stored.
template <class T>
struct Result {
  T* data;
  int columns, stride, end;
};

// Stores a warp's words, the first of which is at (row, column), through a panel of shared memory: 128 bytes of a row
// at a time.
template <class T>
__device__ __forceinline__ void store_words(const Words& words, T* panel, const Result<T>& to, int row, int column) {
  const int lane = lane_id(), at = column + lane % 8 * 8;
  const auto* bytes = reinterpret_cast<const unsigned char*>(panel);
  __syncwarp();
  write_panel(panel, words);
  __syncwarp();
#pragma unroll
  for (int r = lane / 8; r < kWarpRows; r += 4)
    if (row + r < to.end && at < to.columns)
      st16(to.data + static_cast<int64_t>(row + r) * to.stride + at,
           ld16(bytes + r * kRowBytes + (lane % 8 ^ r % 8) * 16));
}

// Stores a warp's sums, the first of which is at (row, column).
template <class T>
__device__ __forceinline__ void store_rows(const Sums& sums, T* panel, const Result<T>& d, int row, int column) {
#pragma unroll
  for (int c = 0; c < kColumns / kBoxColumns; ++c) {
    Words words;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int at = (8 * c + n) * 4 + 2 * h;
        words[n][h] = word_of<T>(sums[at], sums[at + 1]);
      }
    }
    store_words(words, panel, d, row, column + c * kBoxColumns);
  }
}

// Stores gate and up in d, and h.
template <class T>
__device__ __forceinline__ void store_rows(const Sums& sums, T* panel, const Result<T>& d, int row, int column,
                                           const Swiglu<T>& epilogue) {
  const int half = d.columns / 2;
  const Result<T> gates{d.data, half, d.stride, d.end}, ups{d.data + half, half, d.stride, d.end};
  const Result<T> made{epilogue.h, half, half, d.end};
  float weight[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int at = row + 8 * h + lane_id() / 4;
    weight[h] = at < d.end ? epilogue.weights[epilogue.slots[at]] : 0.f;
  }
#pragma unroll
  for (int c = 0; c < kHalf / kBoxColumns; ++c) {
    Words gate, up, y;
    swiglu_words<T>(gate, up, y, sums, c, weight);
    store_words(gate, panel, gates, row, column + c * kBoxColumns);
    store_words(up, panel, ups, row, column + c * kBoxColumns);
    store_words(y, panel, made, row, column + c * kBoxColumns);
  }
}

// Adds a warp's sums to d [outputs, inputs] of an expert.
template <class D>
__device__ __forceinline__ void add_rows(const Sums& sums, D* d, int row, int outputs, int column, int inputs) {
  const int lane = lane_id();
#pragma unroll
  for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int r = row + 8 * h + lane / 4, c = column + 8 * n + lane % 4 * 2, at = 4 * n + 2 * h;
      if (r >= outputs || c >= inputs) continue;
      D* to = d + static_cast<int64_t>(r) * inputs + c;
      const float2 old = two_of<D>(to, 0);
      if constexpr (std::is_same_v<D, float>)
        st8(to, uint2{__float_as_uint(old.x + sums[at]), __float_as_uint(old.y + sums[at + 1])});
      else
        st4(to, word_of<D>(old.x + sums[at], old.y + sums[at + 1]));
    }
  }
}

template <Grouped role, class T, class D, class Epilogue>
__device__ __forceinline__ void run_block(Smem<T>& smem, Ring<kSlots>& ring, const Maps<role>& maps, const Experts& x,
                                          D* d, const Epilogue& epilogue) {
  if (threadIdx.x == 0) {
    ring.init(kWarps);
    ptx::fence_mbar_init();
  }
  __syncthreads();
  ptx::wait_for_earlier_kernels();
  if (threadIdx.x >= kConsumers) {
    ptx::registers_decrease<kProducerRegisters>();
    if (warp_id() == kWarps) produce<Epilogue>(smem, ring, maps, x);
    return;
  }
  ptx::registers_increase<kConsumerRegisters>();
  const int group = group_id(), warp = __shfl_sync(~0u, warp_id(), 0);
  PipelineState<kSlots> pipe;
  for_experts<role, Epilogue>(x, [&](const Tile& tile) {
    Sums sums;
    multiply<role>(sums, smem, ring, pipe, group, static_cast<uint32_t>(steps_of<role>(x, tile)),
                   tile.end - tile.begin);
    const int row = tile.row + warp * kWarpRows;
    if constexpr (role == Grouped::weight_gradient) {
      add_rows(sums, d + static_cast<int64_t>(tile.expert) * x.outputs * x.inputs, row, x.outputs, tile.column,
               x.inputs);
    } else {
      const int columns = role == Grouped::forward ? x.outputs : x.inputs;
      const Result<T> to{d, columns, columns, tile.end};
      if constexpr (kGated<Epilogue>)
        store_rows(sums, smem.panels[warp], to, row, tile.column, epilogue);
      else
        store_rows(sums, smem.panels[warp], to, row, tile.column);
    }
  });
}
#endif

template <Grouped role, class T, class D, class Epilogue>
__global__ void __launch_bounds__(kImageThreads, 1)
    grouped_wgmma(const __grid_constant__ Maps<role> maps, const __grid_constant__ Experts x, D* d,
                  const __grid_constant__ Epilogue epilogue) {
#if PTX_SM90A
  SHARED(Ring<kSlots>, ring);
  DYN_SMEM(raw);
  run_block<role>(*reinterpret_cast<Smem<T>*>(raw), ring, maps, x, d, epilogue);
#endif
}

// ---- launchers

template <Grouped role, class T, class D, class Epilogue = Plain>
void launch_grouped_wgmma(const GroupedGemm& op, cudaStream_t stream, const Epilogue& epilogue = {}) {
  constexpr bool kWeights = role == Grouped::weight_gradient, kForward = role == Grouped::forward;
  const TensorMapEncoder encode = tensor_map_encoder();
  const auto map = [&](const Tensor& t, uint32_t box) {
    return tensor_map<T>(encode, {data<T>(t), t.rows(), t.cols(), t.cols(), box});
  };
  const Maps<role> maps{map(op.a, kWeights ? kTerms : kRows), map(op.b, kForward ? Epilogue::kWidth : kTerms)};
  const Experts x{data<int>(op.offsets), static_cast<int>(op.experts()), static_cast<int>(op.outputs()),
                  static_cast<int>(op.inputs())};
  const int64_t rows = kWeights ? op.experts() * div_ceil<int64_t>(op.outputs(), kRows)
                                : div_ceil<int64_t>(op.rows(), kRows) + op.experts();
  const int64_t width = kForward ? op.outputs() / (kColumns / Epilogue::kWidth) : op.inputs();
  const int64_t tiles = rows * div_ceil<int64_t>(width, Epilogue::kWidth);
  const LaunchConfig config{dim3(grid_size(std::min<int64_t>(multiprocessors(), tiles))), dim3(kThreads),
                            sizeof(Smem<T>), stream};
  CUDA_CHECK(launch(grouped_wgmma<role, T, D, Epilogue>, config, maps, x, data<D>(op.d), epilogue));
}

template <class T>
void launch_gemm(const GroupedGemm& op, cudaStream_t stream) {
  if (op.h)
    return launch_grouped_wgmma<Grouped::forward, T, T>(
        op, stream, Swiglu<T>{data<T>(op.h), data<float>(op.weights), data<int>(op.slots)});
  if (op.role == Grouped::forward) return launch_grouped_wgmma<Grouped::forward, T, T>(op, stream);
  if (op.role == Grouped::input_gradient) return launch_grouped_wgmma<Grouped::input_gradient, T, T>(op, stream);
  if (op.d.dtype == DType::f32) return launch_grouped_wgmma<Grouped::weight_gradient, T, float>(op, stream);
  launch_grouped_wgmma<Grouped::weight_gradient, T, T>(op, stream);
}

}  // namespace

bool grouped_wgmma_takes(const GroupedGemm& op) {
  const auto aligned = [](const Tensor& t) { return reinterpret_cast<uintptr_t>(t.data) % 16 == 0; };
  return grouped_gemm_takes(op, 90) && aligned(op.a) && aligned(op.b) && aligned(op.d) && aligned(op.h) &&
         has_image(grouped_wgmma<Grouped::forward, bf16, bf16, Plain>);
}

void run_grouped_by_wgmma(const GroupedGemm& op, cudaStream_t stream) {
  op.a.dtype == DType::bf16 ? launch_gemm<bf16>(op, stream) : launch_gemm<fp16>(op, stream);
}

}  // namespace athanor::cuda
