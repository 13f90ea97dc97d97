// Products with SwiGLU by warpgroups (sm_90a): z = x W^T of gate and up, written as it is, and y = silu(gate) up.
// Layout: persistent blocks take tiles of d in turn, each of 128 rows and of 128 columns of gate with the same 128 of
// up, so that a thread's registers hold both. Two blocks of a cluster take tiles one above the other, so that W comes
// from the L2 cache once for both. One warp copies 64 columns of x and W at a time into a ring by TMA; two warpgroups
// multiply 64 rows each by wgmma, with the sums of the tile in registers. Each warp then stores its 16 rows by TMA
// through shared memory of its own, while the next tile's factors are copied. Compute bound. Deterministic: a sum
// is over k in order. Products of codes of 8 bits are a kernel of their own (wgmma_codes.cu). No GPU has run
// it yet.
#include "cuda/gemm/wgmma_product.h"

#include "cuda/activation.h"
#include "cuda/gemm/wgmma_tiles.h"
#include "cuda/host_tools.h"
#include "cuda/scratch.h"

namespace athanor::cuda {
namespace {

constexpr int kColumns = 256;  // of a tile: of W's rows, half of them gates
constexpr int kHalf = kColumns / 2;
constexpr int kSlots = 4;  // of the ring: 48 KiB each

struct Maps {
  CUtensorMap x, gate_weights, up_weights;  // of the factors
  CUtensorMap gate, up, y;                  // of the results
};

template <class T>
struct Slot {
  static constexpr int kInner = 128 / static_cast<int>(sizeof(T));  // columns of the factors: a row of 128 bytes
  T x[kRows * kInner], w[kColumns * kInner];
};

template <class T>
struct Room {  // dynamic shared memory
  Slot<T> slots[kSlots];
  T panels[kWarps][kPanels][kWarpRows * kBoxColumns];
};

#if PTX_SM90A
using PairRing = Ring<kSlots, kPair>;

// Calls visit(row, column) with the first row and column of each of this block's tiles, which lie in pairs one above
// the other.
template <class F>
__device__ __forceinline__ void for_blocks(const Tiles& tiles, F visit) {
  for_tiles(tiles, [&](int row, int column) { visit((row * kPair + pair_rank()) * kRows, column * kHalf); });
}

// Each block of a pair copies its own rows of x, and to both blocks one half of W's: gates or ups.
template <class T>
__device__ __forceinline__ void produce(Room<T>& room, PairRing& ring, const Maps& maps, const Tiles& tiles) {
  constexpr int kInner = Slot<T>::kInner;
  constexpr uint16_t kBoth = (1 << kPair) - 1;
  const int half = pair_rank();
  const CUtensorMap* weights = half ? &maps.up_weights : &maps.gate_weights;
  Turn<kSlots> turn;
  for_blocks(tiles, [&](int row, int column) {
#pragma unroll 1
    for (int step = 0; step < tiles.steps; ++step)
      ring.fill(turn, [&](int i) {
        Slot<T>& slot = room.slots[i];
        uint64_t* full = &ring.full[i];
        ptx::mbar_expect_bytes(full, sizeof(Slot<T>));
        ptx::tma_load(slot.x, &maps.x, full, step * kInner, row);
        ptx::tma_load_multicast(slot.w + half * kHalf * kInner, weights, full, kBoth, step * kInner, column);
      });
  });
}

// sums [64, 256] = x W^T of the warpgroup's rows. Element (8 n + lane % 4 * 2 + e, row 8 h + lane / 4 of the warp) is
// 4 n + 2 h + e.
using Sums = float[kColumns / 2];
template <class T>
__device__ __forceinline__ void multiply(Sums& sums, const Room<T>& room, PairRing& ring, Turn<kSlots>& turn, int group,
                                         uint32_t steps) {
  int last = 0;       // the slot of the step before
  uint32_t step = 0;  // pinned, for else the compiler makes the first step code of its own
  ptx::pin(step);
#pragma unroll 1
  do {
    const int slot = ring.wait(turn);
    const uint64_t x = ptx::matrix_descriptor(room.slots[slot].x + group * kGroupRows * Slot<T>::kInner);
    const uint64_t w = ptx::matrix_descriptor(room.slots[slot].w);
    ptx::wgmma_fence(sums);
#pragma unroll
    for (int k = 0; k < 4; ++k) ptx::wgmma<T>(sums, x + 2 * k, w + 2 * k, step > 0 || k > 0);  // 32 bytes of each row
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>();
    if (step > 0) ring.release(last);
    last = slot;
  } while (++step < steps);
  ptx::wgmma_wait<0>(sums);
  ring.release(last);
}

// The words of 64 columns of a warp's rows: [n][h].
using Words = uint32_t[8][2];

// Stores them at (column, row) through a panel of the warp.
template <class T>
__device__ __forceinline__ void store_panel(const CUtensorMap& map, T* panel, const Words& words, int column, int row) {
  through_panel([&] { write_panel(panel, words); }, [&] { ptx::tma_store(&map, panel, column, row); });
}

template <class T>
__device__ __forceinline__ void store(const Sums& sums, T (&panels)[kPanels][kWarpRows * kBoxColumns], const Maps& maps,
                                      int column, int row) {
#pragma unroll
  for (int c = 0; c < kHalf / kBoxColumns; ++c) {
    Words gate, up, y;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int g = (8 * c + n) * 4 + 2 * h, u = g + kHalf / 2;
        gate[n][h] = word_of<T>(sums[g], sums[g + 1]);
        up[n][h] = word_of<T>(sums[u], sums[u + 1]);
        y[n][h] = word_of<T>(swiglu(element<T>(&gate[n][h], 0), element<T>(&up[n][h], 0)),
                             swiglu(element<T>(&gate[n][h], 1), element<T>(&up[n][h], 1)));
      }
    }
    store_panel(maps.gate, panels[c % 2], gate, column + c * kBoxColumns, row);
    store_panel(maps.up, panels[(c + 1) % 2], up, column + c * kBoxColumns, row);
    store_panel(maps.y, panels[c % 2], y, column + c * kBoxColumns, row);
  }
}
#endif

template <class T>
__global__ void __launch_bounds__(kImageThreads, 1)
    product_wgmma(const __grid_constant__ Maps maps, const __grid_constant__ Tiles tiles) {
#if PTX_SM90A
  SHARED(PairRing, ring);
  DYN_SMEM(raw);
  auto& room = *reinterpret_cast<Room<T>*>(raw);
  if (threadIdx.x == 0) {
    ring.init(kWarps);
    ptx::fence_mbar_init();
  }
  ptx::cluster_sync();
  if (threadIdx.x >= kConsumers) {
    ptx::registers_decrease<kProducerRegisters>();
    if (warp_id() == kWarps) produce(room, ring, maps, tiles);
  } else {
    ptx::registers_increase<kConsumerRegisters>();
    const int group = group_id(), warp = __shfl_sync(~0u, warp_id(), 0);
    Turn<kSlots> turn;
    for_blocks(tiles, [&](int row, int column) {
      Sums sums;
      multiply(sums, room, ring, turn, group, static_cast<uint32_t>(tiles.steps));
      store(sums, room.panels[warp], maps, column, row + warp * kWarpRows);
    });
    if (lane_id() == 0) ptx::bulk_wait_read<0>();  // shared memory ends with the block
  }
  ptx::cluster_sync();  // the other block may still write here, and arrive at barriers
#endif
}

template <class T>
void launch_product(const Gemm& op, cudaStream_t stream) {
  const int64_t m = op.m(), f = op.n() / 2, k = op.k();
  const TensorMapEncoder encode = tensor_map_encoder();
  constexpr auto kInner = static_cast<uint32_t>(Slot<T>::kInner);
  const auto factor = [&](const Tensor& t, int64_t first, int64_t rows, uint32_t box) {
    return tensor_map<T>(encode, {data<T>(t) + first * t.stride(), rows, k, t.stride(), box, kInner});
  };
  const auto result = [&](const Tensor& t, int64_t first) {
    return tensor_map<T>(encode, {data<T>(t) + first, m, f, t.stride(), kWarpRows});
  };
  const Maps maps{factor(op.a, 0, m, kRows), factor(op.b, 0, f, kHalf), factor(op.b, f, f, kHalf),
                  result(op.d, 0),           result(op.d, f),           result(op.aux, 0)};
  const Tiles tiles{static_cast<int>(div_ceil<int64_t>(m, kPair * kRows)),
                    static_cast<int>(div_ceil<int64_t>(f, kHalf)), static_cast<int>(div_ceil<int64_t>(k, kInner))};
  CUDA_CHECK(launch(product_wgmma<T>, {grid_of(tiles), dim3(kThreads), sizeof(Room<T>), stream, kPair}, maps, tiles));
}

}  // namespace

bool wgmma_takes(const GemmProblem& p, int capability) {
  return own_product_takes(p, capability) && p.align_d == kMostAlign && p.align_a == kMostAlign &&
         p.align_b == kMostAlign &&
         (p.a == DType::bf16 ? has_image(product_wgmma<bf16>) : has_image(product_wgmma<fp16>));
}

void run_by_wgmma(const Gemm& op, cudaStream_t stream) {
  op.a.dtype == DType::bf16 ? launch_product<bf16>(op, stream) : launch_product<fp16>(op, stream);
}

ProductMethod wgmma_method() {
  return {.tile_rows = kRows,
          .tile_cols = kColumns,
          .words = cat("the program's own kernel, tile ", kRows, "x", kColumns, ", stages ", kSlots)};
}

}  // namespace athanor::cuda
