// Products of codes of 8 bits by warpgroups (sm_90a): d = a b^T, or added to d, of codes times scales, both factors
// with the terms in their rows. Layout: persistent blocks take tiles of d in turn, each of 256 rows and 128 columns.
// Two blocks of a cluster take tiles side by side, so that a comes from the L2 cache once for both. One warp copies 128
// terms of a and b at a time into a ring by TMA; two warpgroups multiply 128 rows each, 64 at a time. Tensor cores keep
// some 14 bits of a sum of codes [DeepSeek-AI 2024, 3.3.2], so these 64 x 128 sums of 128 terms are added to others in
// f32 (unless `fast`), times the scales of their blocks where there are such, while the other warpgroup's products run.
// All sums are in registers, 128 and 64 of a thread. Each warp stores its rows by TMA through shared memory of its own,
// in f32 added to d where asked, while the next tile's factors are copied. With SwiGLU a tile has 64 columns of gate
// and the same 64 of up, so that a thread's registers hold both, and silu(gate) up is stored beside them. Compute
// bound. Deterministic: a sum is over k in order, and is added to d once. No GPU has run it yet.
#include "cuda/gemm/wgmma_codes.h"

#include "cuda/activation.h"
#include "cuda/gemm/wgmma_tiles.h"
#include "cuda/host_tools.h"
#include "cuda/largest.h"
#include "cuda/scratch.h"

namespace athanor::cuda {
namespace {

constexpr int kTerms = 128;    // of a step: a row of 128 bytes, as many as share a scale
constexpr int kColumns = 128;  // of a block's tile; of a cluster's twice as many
constexpr int kPieces = 2;     // of a warpgroup's rows, multiplied one after the other
constexpr int kBlockRows = kPieces * kRows;
constexpr int kSlots = 4;  // of the ring: 48 KiB each

using e4m3 = __nv_fp8_e4m3;
using e5m2 = __nv_fp8_e5m2;

// What is done with sums of 128 terms: they stay where they are, scales come in the end; they are added to f32, scales
// in the end; or times the scale of each row of a and that of b's square, or those of b's rows.
enum class Sums { fast, promoted, squares, blocks };

struct Maps {
  static constexpr int kWidth = kColumns;  // of the result that a tile's columns are of
  CUtensorMap a, b, b_scales, d;
};
// Of z = [gate | up], of `half` columns each, and y = silu(gate) up.
struct GatedMaps {
  static constexpr int kWidth = kColumns / 2;
  CUtensorMap a, gate_weights, up_weights;  // of the factors
  CUtensorMap gate, up, y;                  // of the results
  uint32_t* amax;                           // bits of the largest |y|, or null
};
template <class M>
constexpr bool kGated = std::is_same_v<M, GatedMaps>;
struct Job {  // n: columns of d, with SwiGLU of gate alone
  const float *a_scales, *b_scales;
  int a_each, b_each;  // one scale per row: 1; one for all: 0
  int b_pitch;         // squares: floats from one row of them to the next
  int m, n;
  const void *bias, *residual;  // of d's type; nullptr: none
  int64_t stride;               // elements between rows of d and of the residual
  bool accumulate, is_float;    // d's type: f32, else bf16
};

struct Slot {
  uint8_t a[kBlockRows * kTerms], b[kColumns * kTerms];
};
struct Room {  // dynamic shared memory
  Slot slots[kSlots];
  unsigned char panels[kWarps][kPanels][kPanelBytes];
  float b_scales[kSlots][kColumns];  // of Sums::blocks
};

#if PTX_SM90A
using PairRing = Ring<kSlots, kPair>;

// Calls visit(row, column) with the first ones of each of this block's tiles.
template <class M, class F>
__device__ __forceinline__ void for_blocks(const Tiles& tiles, F visit) {
  for_tiles(tiles, [&](int row, int column) { visit(row * kBlockRows, (column * kPair + pair_rank()) * M::kWidth); });
}

// Each block of a pair copies its own rows of b, and to both blocks one half of a's.
template <Sums S, class M>
__device__ __forceinline__ void produce(Room& room, PairRing& ring, const M& maps, const Tiles& tiles) {
  constexpr uint16_t kBoth = (1 << kPair) - 1;
  constexpr uint32_t kBytes = sizeof(Slot) + (S == Sums::blocks ? sizeof room.b_scales[0] : 0);
  const int half = pair_rank() * kRows;
  Turn<kSlots> turn;
  for_blocks<M>(tiles, [&](int row, int column) {
#pragma unroll 1
    for (int step = 0; step < tiles.steps; ++step)
      ring.fill(turn, [&](int i) {
        uint64_t* full = &ring.full[i];
        ptx::mbar_expect_bytes(full, kBytes);
        ptx::tma_load_multicast(room.slots[i].a + half * kTerms, &maps.a, full, kBoth, step * kTerms, row + half);
        if constexpr (kGated<M>) {
          ptx::tma_load(room.slots[i].b, &maps.gate_weights, full, step * kTerms, column);
          ptx::tma_load(room.slots[i].b + M::kWidth * kTerms, &maps.up_weights, full, step * kTerms, column);
        } else {
          ptx::tma_load(room.slots[i].b, &maps.b, full, step * kTerms, column);
        }
        if constexpr (S == Sums::blocks) ptx::tma_load(room.b_scales[i], &maps.b_scales, full, column, step);
      });
  });
}

// sums [64, 128] of half a warpgroup's rows. Element (row 8 h + lane / 4 of the warp, 8 n + lane % 4 * 2 + e) is
// 4 n + 2 h + e.
using Piece = float[kColumns / 2];

// Where a thread's elements of d begin.
struct Place {
  int row, column;
  __device__ __forceinline__ int row_of(int piece, int h) const { return row + piece * kGroupRows + 8 * h; }
};
__device__ __forceinline__ Place place_of(int row, int column, int group, int warp) {
  return {row + group * kPieces * kGroupRows + warp * kWarpRows + lane_id() / 4, column + lane_id() % 4 * 2};
}

template <class A, class B>
__device__ __forceinline__ void issue(Piece& sums, const Slot& slot, int group, int piece, bool accumulate) {
  const uint64_t a = ptx::matrix_descriptor(slot.a + (group * kPieces + piece) * kGroupRows * kTerms);
  const uint64_t b = ptx::matrix_descriptor(slot.b);
  ptx::wgmma_fence(sums);
#pragma unroll
  for (int k = 0; k < 4; ++k)
    ptx::wgmma<A, B>(sums, a + 2 * k, b + 2 * k, accumulate || k > 0);  // 32 bytes of each row
}

// Sums::fast: as long as there are terms.
template <class A, class B>
__device__ __forceinline__ void multiply_fast(Piece (&sums)[kPieces], const Room& room, PairRing& ring,
                                              Turn<kSlots>& turn, int group, uint32_t steps) {
  int last = 0;       // the slot of the step before
  uint32_t step = 0;  // pinned, for else the compiler makes the first step code of its own
  ptx::pin(step);
#pragma unroll 1
  do {
    const int slot = ring.wait(turn);
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) issue<A, B>(sums[piece], room.slots[slot], group, piece, step > 0);
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>();
    if (step > 0) ring.release(last);
    last = slot;
  } while (++step < steps);
  ptx::wgmma_wait<0>(sums[0], sums[1]);
  ring.release(last);
}

// The scales of a step: of a thread's rows of a, and of the square of b, with SwiGLU of gate's and of up's. They are
// read a step ahead of their use.
template <Sums S, bool gated>
struct StepScales {
  static constexpr int kSquares = gated ? 2 : 1;
  float a[kPieces][2] = {}, b[kSquares] = {};
  __device__ __forceinline__ void load(const Job& job, const Place& at, uint32_t step) {
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
#pragma unroll
      for (int h = 0; h < 2; ++h)
        a[piece][h] = job.a_scales[static_cast<int64_t>(step) * job.m + min(at.row_of(piece, h), job.m - 1)];
    }
    if constexpr (S == Sums::squares) {
#pragma unroll
      for (int i = 0; i < kSquares; ++i)
        b[i] =
            job.b_scales[static_cast<int64_t>((min(at.column, job.n - 1) + i * job.n) / kColumns) * job.b_pitch + step];
    }
  }
};

// sums += part * scales. b: of the tile's columns.
template <Sums S, int Squares>
__device__ __forceinline__ void promote(Piece& sums, const Piece& part, const float (&a)[2],
                                        const float (&squares)[Squares], const float* b) {
  float rows[2] = {a[0], a[1]};
#pragma unroll
  for (int n = 0; n < kColumns / 8; ++n) {
    if (S == Sums::squares && n % (kColumns / 8 / Squares) == 0) {
      const float square = squares[n * Squares / (kColumns / 8)];
      rows[0] = a[0] * square, rows[1] = a[1] * square;
    }
    uint2 two{};
    if constexpr (S == Sums::blocks) two = ld8(b + 8 * n + lane_id() % 4 * 2);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float& sum = sums[4 * n + i];
      const float value = part[4 * n + i];
      if constexpr (S == Sums::promoted) sum += value;
      if constexpr (S == Sums::squares) sum = fmaf(value, rows[i / 2], sum);
      if constexpr (S == Sums::blocks) sum = fmaf(value, rows[i / 2] * __uint_as_float(i % 2 ? two.y : two.x), sum);
    }
  }
}

template <class A, class B, Sums S, bool gated>
__device__ __forceinline__ void multiply(Piece (&sums)[kPieces], const Room& room, PairRing& ring, Turn<kSlots>& turn,
                                         int group, uint32_t steps, const Job& job, const Place& at) {
  constexpr bool kScaled = S != Sums::promoted;
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) sums[piece][i] = 0;
  }
  StepScales<S, gated> scales, next;
  if constexpr (kScaled) next.load(job, at, 0);
#pragma unroll 1
  for (uint32_t step = 0; step < steps; ++step) {
    scales = next;
    const int slot = ring.wait(turn);
    if constexpr (kScaled) next.load(job, at, min(step + 1, steps - 1));
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      Piece part;
      issue<A, B>(part, room.slots[slot], group, piece, false);
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>(part);
      if (!kScaled && piece + 1 == kPieces) ring.release(slot);
      promote<S>(sums[piece], part, scales.a[piece], scales.b, room.b_scales[slot]);
    }
    if (kScaled) ring.release(slot);
  }
}

// ---- from sums to d

// values [n][h] of so many groups of 8 columns from `column` on, and of the rows of a piece.
template <int N>
using Pairs = float2[N][2];

// Times scales, with bias and residual. Beyond d, where the last elements of a row or column are read instead, nothing
// is stored.
template <class T, bool kScales, int N>
__device__ __forceinline__ void finish(Pairs<N>& values, const Job& job, const Place& at, int piece, int column) {
  const auto add = [](float2& to, float2 more) { to.x += more.x, to.y += more.y; };
  const int rows[2] = {min(at.row_of(piece, 0), job.m - 1), min(at.row_of(piece, 1), job.m - 1)};
  float2 b[N];  // scales of columns, then biases
  if constexpr (kScales) {
    const float a[2] = {job.a_scales[rows[0] * job.a_each], job.a_scales[rows[1] * job.a_each]};
    const float one = job.b_each ? 0 : *job.b_scales;
#pragma unroll
    for (int n = 0; n < N; ++n)
      b[n] = job.b_each ? two_of<float>(job.b_scales, min(column + 8 * n, job.n - 2)) : float2{one, one};
#pragma unroll
    for (int i = 0; i < 2 * N; ++i) {
      float2& v = values[i / 2][i % 2];
      v.x = v.x * a[i % 2] * b[i / 2].x, v.y = v.y * a[i % 2] * b[i / 2].y;
    }
  }
  if (job.bias) {
#pragma unroll
    for (int n = 0; n < N; ++n) b[n] = two_of<T>(job.bias, min(column + 8 * n, job.n - 2));
#pragma unroll
    for (int i = 0; i < 2 * N; ++i) add(values[i / 2][i % 2], b[i / 2]);
  }
  if (job.residual) {
#pragma unroll
    for (int i = 0; i < 2 * N; ++i)
      add(values[i / 2][i % 2],
          two_of<T>(job.residual, rows[i % 2] * job.stride + min(column + 8 * (i / 2), job.n - 2)));
  }
}

// A warp's rows of a piece. Panels are of 64 columns of bf16 or 32 of f32.
template <class T, bool kScales>
__device__ __forceinline__ void store(const Piece& sums, unsigned char (&panels)[kPanels][kPanelBytes],
                                      const Maps& maps, const Job& job, const Place& at, int piece) {
  constexpr int kWide = kRowBytes / static_cast<int>(sizeof(T)), kGroupsOf8 = kWide / 8;
  const int lane = lane_id(), row = at.row_of(piece, 0) - lane / 4, column = at.column - lane % 4 * 2;
#pragma unroll
  for (int c = 0; c < kColumns / kWide; ++c) {
    Pairs<kGroupsOf8> values;
#pragma unroll
    for (int i = 0; i < 2 * kGroupsOf8; ++i) {
      const int first = kGroupsOf8 * c * 4 + 2 * i;
      values[i / 2][i % 2] = {sums[first], sums[first + 1]};
    }
    finish<T, kScales, kGroupsOf8>(values, job, at, piece, at.column + c * kWide);
    unsigned char* panel = panels[c % kPanels];
    const auto write = [&] {
      if constexpr (std::is_same_v<T, float>) {
#pragma unroll
        for (int n = 0; n < kGroupsOf8; ++n) {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const int chunk = 2 * n + lane % 4 / 2;  // of 16 bytes
            st8(panel + (8 * h + lane / 4) * kRowBytes + (chunk ^ lane / 4) * 16 + lane % 2 * 8,
                {__float_as_uint(values[n][h].x), __float_as_uint(values[n][h].y)});
          }
        }
      } else {
        uint32_t words[8][2];
#pragma unroll
        for (int n = 0; n < 8; ++n) {
#pragma unroll
          for (int h = 0; h < 2; ++h) words[n][h] = word_of<T>(values[n][h].x, values[n][h].y);
        }
        write_panel(panel, words);
      }
    };
    // Sums below the normal numbers may be lost where they are added to d. [PTX, red.global.add.f32]
    through_panel(write, [&] {
      if (std::is_same_v<T, float> && job.accumulate)
        ptx::tma_reduce_add(&maps.d, panel, column + c * kWide, row);
      else
        ptx::tma_store(&maps.d, panel, column + c * kWide, row);
    });
  }
}

// The same of gates and ups, and silu(gate) up of what is stored, whose largest magnitude becomes at least `largest`.
template <bool kScales>
__device__ __forceinline__ void store_gated(const Piece& sums, unsigned char (&panels)[kPanels][kPanelBytes],
                                            const GatedMaps& maps, const Job& job, const Place& at, int piece,
                                            uint32_t& largest) {
  static_assert(GatedMaps::kWidth * sizeof(bf16) == kRowBytes);
  const int lane = lane_id(), row = at.row_of(piece, 0) - lane / 4, column = at.column - lane % 4 * 2;
  uint32_t words[2][8][2];  // of gate, of up
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    Pairs<8> values;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int first = half * 32 + 2 * i;
      values[i / 2][i % 2] = {sums[first], sums[first + 1]};
    }
    Job of_half = job;
    of_half.b_scales += half * job.n * job.b_each;
    finish<bf16, kScales, 8>(values, of_half, at, piece, at.column);
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int h = 0; h < 2; ++h) words[half][n][h] = word_of<bf16>(values[n][h].x, values[n][h].y);
    }
    unsigned char* panel = panels[(piece + half) % kPanels];
    const CUtensorMap* map = half ? &maps.up : &maps.gate;
    through_panel([&] { write_panel(panel, words[half]); }, [&] { ptx::tma_store(map, panel, column, row); });
  }
#pragma unroll
  for (int n = 0; n < 8; ++n) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float y[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        y[e] = swiglu(element<bf16>(&words[0][n][h], e), element<bf16>(&words[1][n][h], e));
        largest = max(largest, magnitude(y[e]));
      }
      words[0][n][h] = word_of<bf16>(y[0], y[1]);
    }
  }
  unsigned char* panel = panels[piece % kPanels];
  through_panel([&] { write_panel(panel, words[0]); }, [&] { ptx::tma_store(&maps.y, panel, column, row); });
}

template <class A, class B, Sums S, class M>
__device__ __forceinline__ void run_block(Room& room, PairRing& ring, const M& maps, const Tiles& tiles,
                                          const Job& job) {
  if (threadIdx.x == 0) {
    ring.init(kWarps);
    ptx::fence_mbar_init();
  }
  ptx::cluster_sync();
  ptx::wait_for_earlier_kernels();
  if (threadIdx.x >= kConsumers) {
    ptx::registers_decrease<kProducerRegisters>();
    if (warp_id() == kWarps) produce<S>(room, ring, maps, tiles);
  } else {
    ptx::registers_increase<kConsumerRegisters>();
    const int group = group_id(), warp = __shfl_sync(~0u, warp_id(), 0);
    constexpr bool kScales = S == Sums::fast || S == Sums::promoted;
    Turn<kSlots> turn;
    [[maybe_unused]] uint32_t largest = 0;
    for_blocks<M>(tiles, [&](int row, int column) {
      const Place at = place_of(row, column, group, warp % 4);
      Piece sums[kPieces];
      if constexpr (S == Sums::fast)
        multiply_fast<A, B>(sums, room, ring, turn, group, static_cast<uint32_t>(tiles.steps));
      else
        multiply<A, B, S, kGated<M>>(sums, room, ring, turn, group, static_cast<uint32_t>(tiles.steps), job, at);
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
        if constexpr (kGated<M>)
          store_gated<kScales>(sums[piece], room.panels[warp], maps, job, at, piece, largest);
        else if (job.is_float)
          store<float, kScales>(sums[piece], room.panels[warp], maps, job, at, piece);
        else
          store<bf16, kScales>(sums[piece], room.panels[warp], maps, job, at, piece);
      }
    });
    if constexpr (kGated<M>)
      if (maps.amax) raise_by_warp<bf16>(maps.amax, largest);
    if (lane_id() == 0) ptx::bulk_wait_read<0>();  // shared memory ends with the block
  }
  ptx::cluster_sync();  // the other block may still write here, and arrive at barriers
}
#endif

template <class A, class B, Sums S, class M>
__global__ void __launch_bounds__(kImageThreads, 1)
    codes_wgmma(const __grid_constant__ M maps, const __grid_constant__ Tiles tiles, const __grid_constant__ Job job) {
#if PTX_SM90A
  SHARED(PairRing, ring);
  DYN_SMEM(raw);
  run_block<A, B, S>(*reinterpret_cast<Room*>(raw), ring, maps, tiles, job);
#endif
}

Job job_of(const CodesToMultiply& p, int64_t columns, int64_t steps) {
  const Gemm& g = p.op;
  return {.a_scales = p.a_scales,
          .b_scales = p.b_scales,
          .a_each = p.a_layout == ScaleLayout::rows,
          .b_each = p.b_layout == ScaleLayout::rows,
          .b_pitch = static_cast<int>(round_up<int64_t>(steps, 4)),
          .m = static_cast<int>(g.m()),
          .n = static_cast<int>(columns),
          .bias = g.bias.data,
          .residual = g.epilogue == Epilogue::add ? g.aux.data : nullptr,
          .stride = g.d.stride(),
          .accumulate = g.accumulate,
          .is_float = g.d.dtype == DType::f32};
}

template <class A, class B, Sums S, class M>
void launch_tiles(const CodesToMultiply& p, const M& maps, const Job& job, int64_t steps, cudaStream_t stream) {
  const Tiles tiles{static_cast<int>(div_ceil<int64_t>(p.op.m(), kBlockRows)),
                    static_cast<int>(div_ceil<int64_t>(job.n, kPair * M::kWidth)), static_cast<int>(steps)};
  CUDA_CHECK(
      launch(codes_wgmma<A, B, S, M>, {grid_of(tiles), dim3(kThreads), sizeof(Room), stream, kPair}, maps, tiles, job));
}

template <Sums S>
void launch_gated(const CodesToMultiply& p, cudaStream_t stream) {
  const Gemm& g = p.op;
  const int64_t m = g.m(), k = g.k(), half = g.n() / 2, steps = div_ceil<int64_t>(k, kTerms);
  const TensorMapEncoder encode = tensor_map_encoder();
  const auto factor = [&](const Tensor& t, int64_t first, int64_t rows, uint32_t box) {
    return tensor_map<e4m3>(encode, {data<e4m3>(t) + first * t.stride(), rows, k, t.stride(), box, kTerms});
  };
  const auto result = [&](const Tensor& t, int64_t first) {
    return tensor_map<bf16>(encode, {data<bf16>(t) + first, m, half, t.stride(), kWarpRows});
  };
  const GatedMaps maps{factor(g.a, 0, m, kRows),
                       factor(g.b, 0, half, GatedMaps::kWidth),
                       factor(g.b, half, half, GatedMaps::kWidth),
                       result(g.d, 0),
                       result(g.d, half),
                       result(g.aux, 0),
                       p.amax};
  if (p.amax) CUDA_CHECK(cudaMemsetAsync(p.amax, 0, sizeof *p.amax, stream));
  launch_tiles<e4m3, e4m3, S>(p, maps, job_of(p, half, steps), steps, stream);
}

template <class A, class B, Sums S>
void launch_codes(const CodesToMultiply& p, cudaStream_t stream) {
  const Gemm& g = p.op;
  const int64_t m = g.m(), n = g.n(), k = g.k(), steps = div_ceil<int64_t>(k, kTerms);
  const bool is_float = g.d.dtype == DType::f32;
  const TensorMapEncoder encode = tensor_map_encoder();
  const auto factor = [&]<class T>(const Tensor& t, const T*) {
    return tensor_map<T>(encode, {data<T>(t), t.rows(), k, t.stride(), kRows, kTerms});
  };
  const auto result = [&]<class T>(const T*) {
    constexpr auto kWide = static_cast<uint32_t>(kRowBytes / sizeof(T));
    return tensor_map<T>(encode, {data<T>(g.d), m, n, g.d.stride(), kWarpRows, kWide});
  };
  Maps maps{factor(g.a, static_cast<const A*>(nullptr)),
            factor(g.b, static_cast<const B*>(nullptr)),
            {},
            is_float ? result(static_cast<const float*>(nullptr)) : result(static_cast<const bf16*>(nullptr))};
  if constexpr (S == Sums::blocks) maps.b_scales = tensor_map<float>(encode, {p.b_scales, steps, n, n, 1, kColumns});
  launch_tiles<A, B, S>(p, maps, job_of(p, n, steps), steps, stream);
}

template <class A, class B>
void by_sums(const CodesToMultiply& p, cudaStream_t stream) {
  if (p.b_layout == ScaleLayout::squares) return launch_codes<A, B, Sums::squares>(p, stream);
  if (p.b_layout == ScaleLayout::blocks) return launch_codes<A, B, Sums::blocks>(p, stream);
  p.fast ? launch_codes<A, B, Sums::fast>(p, stream) : launch_codes<A, B, Sums::promoted>(p, stream);
}

}  // namespace

bool wgmma_takes_codes(const GemmProblem& p, int capability) {
  const bool aligned = p.align_d == kMostAlign && p.align_a == kMostAlign && p.align_b == kMostAlign;
  const auto has = [&] {
    return p.epilogue == Epilogue::swiglu ? has_image(codes_wgmma<e4m3, e4m3, Sums::fast, GatedMaps>)
                                          : has_image(codes_wgmma<e4m3, e4m3, Sums::promoted, Maps>);
  };
  return own_codes_take(p, capability) && aligned && has();
}

void multiply_codes_by_wgmma(const CodesToMultiply& p, cudaStream_t stream) {
  if (p.op.epilogue == Epilogue::swiglu)
    return p.b_layout == ScaleLayout::squares ? launch_gated<Sums::squares>(p, stream)
                                              : launch_gated<Sums::fast>(p, stream);
  if (p.op.a.dtype == DType::f8_e5m2) return by_sums<e5m2, e4m3>(p, stream);
  p.op.b.dtype == DType::f8_e5m2 ? by_sums<e4m3, e5m2>(p, stream) : by_sums<e4m3, e4m3>(p, stream);
}

ProductMethod wgmma_codes_method() {
  return {.words = cat("the program's own kernel, tile ", kBlockRows, "x", kColumns, ", stages ", kSlots)};
}

}  // namespace athanor::cuda
