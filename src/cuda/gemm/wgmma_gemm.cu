// GEMMs with SwiGLU or RoPE by warpgroups (sm_90a). SwiGLU forward: z = x W^T is [gate | up] and stored unchanged, and
// y = silu(gate) up. SwiGLU backward: z = dy W is the gradient of y; the gradient of [gate | up] overwrites gate and
// up, and y is recomputed. RoPE: z = x W^T + bias; the heads of queries and keys are rotated before z is stored.
// Layout: persistent blocks loop over tiles of z of 128 rows and 256 columns; in SwiGLU forward these are 128 columns
// of gate and the same 128 of up, so that a thread's registers hold both, as they hold both halves of a head. The two
// blocks of a cluster take vertically adjacent tiles, so that W comes from the L2 cache once for both. One warp copies
// 64 elements along K of x and W at a time into a ring by TMA, and in backward then gate and up, 64 columns at a time;
// two warpgroups multiply 64 rows each by wgmma, with the sums in registers. Each warp then stores its 16 rows by TMA
// through its own shared memory, while the next copies run. Compute bound; backward is also memory bound if K is less
// than some 1,000. Deterministic: a sum is over k in order. No GPU has run it yet.
#include "cuda/gemm/wgmma_gemm.h"

#include "cuda/activation.h"
#include "cuda/gemm/wgmma_tiles.h"
#include "cuda/host_tools.h"
#include "cuda/rotation.h"
#include "cuda/scratch.h"

namespace athanor::cuda {
namespace {

constexpr int kHalf = kColumns / 2;  // in SwiGLU forward the columns of gate in a tile

struct Forward {                        // tensor maps
  static constexpr int kWidth = kHalf;  // columns of y in a tile
  CUtensorMap x, weights[2];            // x; rows of W for either half of a tile
  CUtensorMap gate, up, y;              // results
};
struct Backward {
  static constexpr int kWidth = kColumns;
  CUtensorMap dy, weights, old_gate, old_up;  // inputs
  CUtensorMap gate, up, y;                    // results; gate and up overwrite the old ones
};
template <int HeadDim>
struct Rotated {
  static constexpr int kWidth = kColumns;
  CUtensorMap x, weights[2];
  CUtensorMap z;
  const void* bias;      // [columns] of z's type; nullptr: none
  const float* cos_sin;  // [P, HeadDim]
  const int* positions;  // [rows]
  int rows, columns, rotated;
};

// A slot has x in a and W in b; in backward also 64 columns of the old values: gate in a, up in b.
template <class T>
struct Smem {  // dynamic shared memory
  Slot<T> slots[kSlots];
  T panels[kWarps][kPanels][kWarpRows * kBoxColumns];
};

#if PTX_SM90A
using PairRing = Ring<kSlots, kPair>;

// Calls visit(row, column) with the first row and column of each of this block's tiles. The tiles of a pair of blocks
// are vertically adjacent.
template <int Width, class F>
__device__ __forceinline__ void for_blocks(const Tiles& tiles, F visit) {
  for_tiles(tiles, [&](int row, int column) { visit((row * kPair + pair_rank()) * kRows, column * Width); });
}

// Each block of a pair copies its own rows of x, and multicasts one half of W's rows to both blocks.
constexpr uint16_t kBoth = (1 << kPair) - 1;
template <class T, class Maps>
__device__ __forceinline__ void produce(Smem<T>& smem, PairRing& ring, const Maps& maps, const Tiles& tiles) {
  const int half = pair_rank();
  const CUtensorMap* weights = &maps.weights[half];
  PipelineState<kSlots> pipe;
  for_blocks<Maps::kWidth>(tiles, [&](int row, int column) {
#pragma unroll 1
    for (int step = 0; step < tiles.steps; ++step)
      ring.fill(pipe, [&](int i) {
        Slot<T>& slot = smem.slots[i];
        uint64_t* full = &ring.full[i];
        ptx::mbar_expect_bytes(full, sizeof(Slot<T>));
        ptx::tma_load(slot.a, &maps.x, full, step * kTerms, row);
        ptx::tma_load_multicast(slot.b + half * kHalf * kTerms, weights, full, kBoth, step * kTerms, column);
      });
  });
}
// Backward: each block multicasts half of W's columns to both; then one block copies the old gates of both, the other
// the old ups. Both blocks must fill every slot: if a block filled one alone, its warps could release the slot a second
// time before a slow warp has released it once, and `empty` of the other block, which counts arrivals, would complete
// early.
template <class T>
__device__ __forceinline__ void produce(Smem<T>& smem, PairRing& ring, const Backward& maps, const Tiles& tiles) {
  const int half = pair_rank();
  PipelineState<kSlots> pipe;
  for_blocks<Backward::kWidth>(tiles, [&](int row, int column) {
#pragma unroll 1
    for (int step = 0; step < tiles.steps; ++step)
      ring.fill(pipe, [&](int i) {
        Slot<T>& slot = smem.slots[i];
        uint64_t* full = &ring.full[i];
        ptx::mbar_expect_bytes(full, sizeof(Slot<T>));
        ptx::tma_load(slot.a, &maps.dy, full, step * kTerms, row);
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int panel = 2 * half + c;
          ptx::tma_load_multicast(slot.b + panel * kPanel, &maps.weights, full, kBoth, column + panel * kBoxColumns,
                                  step * kTerms);
        }
      });
#pragma unroll 1
    for (int c = 0; c < kColumns; c += kBoxColumns)
      ring.fill(pipe, [&](int i) {
        Slot<T>& slot = smem.slots[i];
        uint64_t* full = &ring.full[i];
        ptx::mbar_expect_bytes(full, 2 * sizeof slot.a);
#pragma unroll
        for (int b = 0; b < kPair; ++b)
          ptx::tma_load_multicast(half == 0 ? slot.a : slot.b, half == 0 ? &maps.old_gate : &maps.old_up, full,
                                  static_cast<uint16_t>(1 << b), column + c, row + (b - half) * kRows);
      });
  });
}

template <class Maps, class T>
__device__ __forceinline__ void multiply(Sums& sums, const Smem<T>& smem, PairRing& ring, PipelineState<kSlots>& pipe,
                                         int group, uint32_t steps) {
  constexpr bool kOutIn = !std::is_same_v<Maps, Backward>;  // W [N, K], not [K, N]
  sum_steps(sums, ring, pipe, steps, [&](int slot, uint32_t step) {
    const uint64_t x = ptx::matrix_descriptor(smem.slots[slot].a + group * kGroupRows * kTerms);
    const uint64_t w = ptx::matrix_descriptor(smem.slots[slot].b, {.leading = kOutIn ? 16 : kPanel * sizeof(T)});
    ptx::wgmma_fence(sums);
#pragma unroll
    for (int k = 0; k < kTerms / 16; ++k) {  // 32 bytes of each row of x, and of W [N, K]; or 16 rows of W [K, N]
      const bool adds = step > 0 || k > 0;
      if constexpr (kOutIn)
        ptx::wgmma<T>(sums, x + 2 * k, w + 2 * k, adds);
      else
        ptx::wgmma<T, ptx::Major::kK, ptx::Major::kRows>(sums, x + 2 * k, w + k * kRowBytes, adds);
    }
  });
}

// Stores the words at (column, row) through a panel of the warp.
template <class T>
__device__ __forceinline__ void store_panel(const CUtensorMap& map, T* panel, const Words& words, int column, int row) {
  through_panel([&] { write_panel(panel, words); }, [&] { ptx::tma_store(&map, panel, column, row); });
}

// finish(): epilogue of a warp's sums, whose first element is at (column, row).
template <class T>
__device__ __forceinline__ void finish(const Sums& sums, Smem<T>& smem, PairRing&, PipelineState<kSlots>&,
                                       const Forward& maps, int warp, int column, int row) {
  auto& panels = smem.panels[warp];
#pragma unroll
  for (int c = 0; c < kHalf / kBoxColumns; ++c) {
    Words gate, up, y;
    swiglu_words<T>(gate, up, y, sums, c, {1, 1});
    store_panel(maps.gate, panels[c % 2], gate, column + c * kBoxColumns, row);
    store_panel(maps.up, panels[(c + 1) % 2], up, column + c * kBoxColumns, row);
    store_panel(maps.y, panels[c % 2], y, column + c * kBoxColumns, row);
  }
}
template <class T>
__device__ __forceinline__ void finish(const Sums& sums, Smem<T>& smem, PairRing& ring, PipelineState<kSlots>& pipe,
                                       const Backward& maps, int warp, int column, int row) {
  auto& panels = smem.panels[warp];
#pragma unroll
  for (int c = 0; c < kColumns / kBoxColumns; ++c) {
    Words gate, up, y;
    const int slot = ring.wait(pipe);
    read_panel(gate, smem.slots[slot].a + warp * kWarpRows * kBoxColumns);
    read_panel(up, smem.slots[slot].b + warp * kWarpRows * kBoxColumns);
    ring.release(slot);
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int at = (8 * c + n) * 4 + 2 * h;
        const uint32_t z = word_of<T>(sums[at], sums[at + 1]);
        SwigluGradient d[2];
        float again[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const float g = element<T>(&gate[n][h], e), u = element<T>(&up[n][h], e);
          d[e] = swiglu_gradient(element<T>(&z, e), g, u);
          again[e] = swiglu(g, u);
        }
        gate[n][h] = word_of<T>(d[0].gate, d[1].gate);
        up[n][h] = word_of<T>(d[0].up, d[1].up);
        y[n][h] = word_of<T>(again[0], again[1]);
      }
    }
    store_panel(maps.gate, panels[c % 2], gate, column + c * kBoxColumns, row);
    store_panel(maps.up, panels[(c + 1) % 2], up, column + c * kBoxColumns, row);
    store_panel(maps.y, panels[c % 2], y, column + c * kBoxColumns, row);
  }
}

// RoPE: the two elements of a rotation are half a head apart, hence in registers of one thread.
template <class T, int HeadDim>
__device__ __forceinline__ void finish(const Sums& sums, Smem<T>& smem, PairRing&, PipelineState<kSlots>&,
                                       const Rotated<HeadDim>& maps, int warp, int column, int row) {
  constexpr int kApart = HeadDim / 2 / 8;  // groups of 8 columns
  const int lane = lane_id();
  const float* table[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int at = min(row + 8 * h + lane / 4, maps.rows - 1);  // rows beyond it are not stored
    table[h] = maps.cos_sin + static_cast<int64_t>(maps.positions[at]) * HeadDim + lane % 4 * 2;
  }
#pragma unroll
  for (int head = 0; head < kColumns / HeadDim; ++head) {
    const int first = column + head * HeadDim;
    Words words[HeadDim / kBoxColumns];
#pragma unroll
    for (int n = 0; n < HeadDim / 8; ++n) {
      const int i = (head * HeadDim / 8 + n) * 4;
      float2 bias{};
      if (maps.bias) bias = two_of<T>(maps.bias, min(first + 8 * n + lane % 4 * 2, maps.columns - 2));
#pragma unroll
      for (int h = 0; h < 2; ++h)
        words[n / 8][n % 8][h] = word_of<T>(sums[i + 2 * h] + bias.x, sums[i + 2 * h + 1] + bias.y);
    }
    if (first < maps.rotated) {
#pragma unroll
      for (int n = 0; n < kApart; ++n) {
        const int second = n + kApart;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          uint32_t &a = words[n / 8][n % 8][h], &b = words[second / 8][second % 8][h];
          const float2 cosine = two_of<float>(table[h], 8 * n), sine = two_of<float>(table[h], 8 * second);
          const float2 x = rotate(element<T>(&a, 0), element<T>(&b, 0), cosine.x, sine.x);
          const float2 y = rotate(element<T>(&a, 1), element<T>(&b, 1), cosine.y, sine.y);
          a = word_of<T>(x.x, y.x);
          b = word_of<T>(x.y, y.y);
        }
      }
    }
#pragma unroll
    for (int p = 0; p < HeadDim / kBoxColumns; ++p)
      store_panel(maps.z, smem.panels[warp][(head * (HeadDim / kBoxColumns) + p) % kPanels], words[p],
                  first + p * kBoxColumns, row);
  }
}

template <class T, class Maps>
__device__ __forceinline__ void run_block(Smem<T>& smem, PairRing& ring, const Maps& maps, const Tiles& tiles) {
  if (threadIdx.x == 0) {
    ring.init(kWarps);
    ptx::fence_mbar_init();
  }
  ptx::cluster_sync();
  ptx::wait_for_earlier_kernels();
  if (threadIdx.x >= kConsumers) {
    ptx::registers_decrease<kProducerRegisters>();
    if (warp_id() == kWarps) produce(smem, ring, maps, tiles);
  } else {
    ptx::registers_increase<kConsumerRegisters>();
    const int group = group_id(), warp = __shfl_sync(~0u, warp_id(), 0);
    PipelineState<kSlots> pipe;
    for_blocks<Maps::kWidth>(tiles, [&](int row, int column) {
      Sums sums;
      multiply<Maps>(sums, smem, ring, pipe, group, static_cast<uint32_t>(tiles.steps));
      finish(sums, smem, ring, pipe, maps, warp, column, row + warp * kWarpRows);
    });
    if (lane_id() == 0) ptx::bulk_wait_read<0>();  // the stores have read shared memory before the block ends
  }
  ptx::cluster_sync();  // the other block may still write to this block's shared memory and arrive at its barriers
}
#endif

template <class T>
__global__ void __launch_bounds__(kImageThreads, 1)
    gemm_wgmma(const __grid_constant__ Forward maps, const __grid_constant__ Tiles tiles) {
#if PTX_SM90A
  SHARED(PairRing, ring);
  DYN_SMEM(raw);
  run_block(*reinterpret_cast<Smem<T>*>(raw), ring, maps, tiles);
#endif
}
template <class T>
__global__ void __launch_bounds__(kImageThreads, 1)
    gradient_wgmma(const __grid_constant__ Backward maps, const __grid_constant__ Tiles tiles) {
#if PTX_SM90A
  SHARED(PairRing, ring);
  DYN_SMEM(raw);
  run_block(*reinterpret_cast<Smem<T>*>(raw), ring, maps, tiles);
#endif
}
template <class T, int HeadDim>
__global__ void __launch_bounds__(kImageThreads, 1)
    rope_wgmma(const __grid_constant__ Rotated<HeadDim> maps, const __grid_constant__ Tiles tiles) {
#if PTX_SM90A
  SHARED(PairRing, ring);
  DYN_SMEM(raw);
  run_block(*reinterpret_cast<Smem<T>*>(raw), ring, maps, tiles);
#endif
}

// ---- launchers

template <class T, class Maps>
void launch_tiles(void (*kernel)(Maps, Tiles), const Gemm& op, int64_t width, const Maps& maps, cudaStream_t stream) {
  const Tiles tiles{static_cast<int>(div_ceil<int64_t>(op.m(), kPair * kRows)),
                    static_cast<int>(div_ceil<int64_t>(width, Maps::kWidth)),
                    static_cast<int>(div_ceil<int64_t>(op.k(), kTerms))};
  CUDA_CHECK(launch(kernel, {grid_of(tiles), dim3(kThreads), sizeof(Smem<T>), stream, kPair}, maps, tiles));
}

template <class T>
void launch_gemm(const Gemm& op, cudaStream_t stream) {
  const int64_t m = op.m(), k = op.k();
  const bool forward = op.epilogue == Epilogue::swiglu;
  const int64_t f = forward ? op.n() / 2 : op.n();  // columns of y; with RoPE, of z
  const TensorMapEncoder encode = tensor_map_encoder();
  const auto factor = [&](const Tensor& t, int64_t first, int64_t rows, uint32_t box) {
    return tensor_map<T>(encode, {data<T>(t) + first * t.stride(), rows, k, t.stride(), box, kTerms});
  };
  const auto result = [&](const Tensor& t, int64_t first, uint32_t box = kWarpRows) {
    return tensor_map<T>(encode, {data<T>(t) + first, m, f, t.stride(), box});
  };
  const auto launch_rotated = [&]<int HeadDim>(std::integral_constant<int, HeadDim>) {
    const Rotated<HeadDim> maps{.x = factor(op.a, 0, m, kRows),
                                .weights = {factor(op.b, 0, f, kHalf), factor(op.b, kHalf, f - kHalf, kHalf)},
                                .z = result(op.d, 0),
                                .bias = op.bias.data,
                                .cos_sin = data<float>(op.aux),
                                .positions = data<int>(op.positions),
                                .rows = static_cast<int>(m),
                                .columns = static_cast<int>(f),
                                .rotated = static_cast<int>(op.rotated)};
    launch_tiles<T>(rope_wgmma<T, HeadDim>, op, f, maps, stream);
  };
  if (op.epilogue == Epilogue::rope) {
    op.aux.cols() == 64 ? launch_rotated(std::integral_constant<int, 64>())
                        : launch_rotated(std::integral_constant<int, 128>());
  } else if (forward) {
    const Forward maps{factor(op.a, 0, m, kRows),
                       {factor(op.b, 0, f, kHalf), factor(op.b, f, f, kHalf)},
                       result(op.d, 0),
                       result(op.d, f),
                       result(op.aux, 0)};
    launch_tiles<T>(gemm_wgmma<T>, op, f, maps, stream);
  } else {
    const Backward maps{factor(op.a, 0, m, kRows),
                        tensor_map<T>(encode, {data<T>(op.b), k, f, op.b.stride(), kTerms}),
                        result(op.aux, 0, kRows),
                        result(op.aux, f, kRows),
                        result(op.aux, 0),
                        result(op.aux, f),
                        result(op.d, 0)};
    launch_tiles<T>(gradient_wgmma<T>, op, f, maps, stream);
  }
}

template <class T>
bool has_images() {
  return has_image(gemm_wgmma<T>) && has_image(gradient_wgmma<T>) && has_image(rope_wgmma<T, 64>) &&
         has_image(rope_wgmma<T, 128>);
}

}  // namespace

bool wgmma_takes(const GemmProblem& p, int capability) {
  return own_gemm_takes(p, capability) && p.align_d == kMostAlign && p.align_a == kMostAlign &&
         p.align_b == kMostAlign && (p.a == DType::bf16 ? has_images<bf16>() : has_images<fp16>());
}

void run_by_wgmma(const Gemm& op, cudaStream_t stream) {
  op.a.dtype == DType::bf16 ? launch_gemm<bf16>(op, stream) : launch_gemm<fp16>(op, stream);
}

std::string wgmma_method() { return cat("the program's own kernel, tile ", kRows, "x", kColumns, ", stages ", kSlots); }

}  // namespace athanor::cuda
