// Attention forward by warpgroups (sm_90a): what attention_forward.cu computes, with wgmma and TMA [Shah et al. 2024].
// Layout: a block takes 128 queries of one head. One warp copies tiles of keys and values into a ring, in the order in
// which they are used; two warpgroups own 64 queries each, scores and sums in registers. The softmax of a tile runs
// beside the values' product of the tile before. Compute bound. No GPU has run it yet.
// Deterministic: a row's sums run over its keys in order.
#include "cuda/attention_softmax.h"
#include "cuda/attention_wgmma.h"
#include "cuda/attention_wgmma_tiles.h"

namespace athanor::cuda::attention {
namespace {

constexpr int kGroups = 2, kRows = kGroups * kGroupRows, kConsumers = kGroups * kGroupThreads;
constexpr int kThreads = kConsumers + kGroupThreads;  // the last warpgroup is the producer's
constexpr int N = 128;                                // keys of a tile
constexpr int kSlots = 4;                             // two of keys, two of values; with D = 128 more do not fit

struct Maps {
  CUtensorMap q, k, v, y;
};

template <class T, int D>
struct Room {         // dynamic shared memory
  T rows[kRows * D];  // queries, later y
  T slots[kSlots][N * D];
};

#if PTX_SM90A
constexpr int kTailBarrier = 1, kGroupBarrier = 2;  // the latter for each warpgroup
// 65,536 registers are 168 a thread. The producer needs few of them, the consumers all others.
constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;

struct Shared {
  Sight<kRows> sight;
  Ring<kSlots> ring;
  uint64_t queries;
};

struct Place {
  int head, kv, first;  // query head, column of keys and values, the block's first query
  int start;            // the first key that one of them sees, kNone without
};

// ---- the producer's warp

template <class T, int D>
__device__ __forceinline__ void produce(Room<T, D>& room, Shared& shared, const Maps& maps, const Place& at) {
  if (at.start == kNone) return;
  const bool leads = lane_id() == 0;
  if (leads) copy_tile<kRows, D>(room.rows, maps.q, &shared.queries, at.head * D, at.first);
  Ring<kSlots>& ring = shared.ring;
  Turn<kSlots> turn;
  const auto push = [&](const CUtensorMap& map, int row, int next) {
    ptx::mbar_wait(&ring.empty[turn.slot], turn.parity ^ 1);  // passes at once the first time
    if (leads) {
      ring.next[turn.slot] = next;
      copy_tile<N, D>(room.slots[turn.slot], map, &ring.full[turn.slot], at.kv, row);
    }
    turn.advance();
  };
  int start = at.start, next = next_seen<kRows>(shared.sight.seen, start + N);
  push(maps.k, start, next);
  while (next != kNone) {
    const int values = start;
    start = next, next = next_seen<kRows>(shared.sight.seen, start + N);
    push(maps.k, start, next);
    push(maps.v, values, start);
  }
  push(maps.v, start, kNone);
}

// ---- consumers

// Rows of values past the last key that is seen may hold anything, even NaN, which a weight of 0 would keep.
template <class T, int D>
__device__ __forceinline__ void clear_rows(T* values, int from) {
  constexpr int kChunks = D / 8, kPanelChunks = kBoxColumns / 8;
  for (int i = static_cast<int>(threadIdx.x); i < (N - from) * kChunks; i += kConsumers) {
    const int row = from + i / kChunks, chunk = i % kChunks;
    st16(values + (chunk / kPanelChunks * N + row) * kBoxColumns + chunk % kPanelChunks * 8, make_uint4(0, 0, 0, 0));
  }
  ptx::fence_proxy_async();
  ptx::bar_sync(kTailBarrier, kConsumers);
}

// Sums over all keys that the warpgroup's queries see. queries: its rows of the tile; seen: the warp's.
template <class T, int D>
__device__ __forceinline__ void consume(Accumulators<1, D>& o, Softmax<1>& softmax, Room<T, D>& room, Shared& shared,
                                        const T* queries, const Seen* seen, int start, float scale) {
  Ring<kSlots>& ring = shared.ring;
  Turn<kSlots> turn;
  Accumulators<1, N> s;
  uint32_t weights[N / 16][4];
  float shrink[1][2];
  const auto add_scores = [&] {
    if (!all_see<16>(seen, start, start + N)) hide<1, N>(s, seen, start, -INFINITY);
    softmax.template add<N>(s, scale, shrink);
  };
  ptx::mbar_wait(&shared.queries, 0);
  int keys = ring.wait(turn), next = ring.next[keys];
  wgmma_rows<D, kRows, N>(s, queries, room.slots[keys]);
  ptx::wgmma_wait<0>();
  ring.release(keys);
  add_scores();
  pack_weights<T, N>(weights, s);
  while (next != kNone) {
    keys = ring.wait(turn);
    wgmma_rows<D, kRows, N>(s, queries, room.slots[keys]);
    const int values = ring.wait(turn);
    wgmma_columns<D, N>(o, weights, room.slots[values]);
    ptx::wgmma_wait<1>();
    start = next, next = ring.next[keys];
    ring.release(keys);
    add_scores();
    ptx::wgmma_wait<0>();
    ring.release(values);
    multiply_by_row<1, D>(o, shrink);
    pack_weights<T, N>(weights, s);
  }
  const int values = ring.wait(turn);
  if (start + N > shared.sight.last) clear_rows<T, D>(room.slots[values], shared.sight.last - start);
  wgmma_columns<D, N>(o, weights, room.slots[values]);
  ptx::wgmma_wait<0>();
}

template <class T, int D>
__device__ __forceinline__ void attend_group(Room<T, D>& room, Shared& shared, const Forward<T>& a, const Maps& maps,
                                             const Place& at) {
  const int group = static_cast<int>(threadIdx.x) / kGroupThreads, own = warp_id() * 16;
  T* rows = room.rows + group * kGroupRows * kBoxColumns;
  Accumulators<1, D> o = {};
  Softmax<1> softmax;
  if (at.start != kNone)
    consume<T, D>(o, softmax, room, shared, rows, shared.sight.seen + own, at.start, a.in.scale * kLog2e);
  float factor[1][2];
  finish<1>(factor, softmax, a, at.first + own, at.head);
  ptx::bar_sync(kGroupBarrier + group, kGroupThreads);  // the queries have been read
  write_rows<kRows, D>(rows, o, factor);
  ptx::fence_proxy_async();
  ptx::bar_sync(kGroupBarrier + group, kGroupThreads);
  if (threadIdx.x % kGroupThreads == 0) {
#pragma unroll
    for (int c = 0; c < D; c += kBoxColumns)
      ptx::tma_store(&maps.y, rows + c * kRows, at.head * D + c, at.first + group * kGroupRows);
    ptx::bulk_commit();
    ptx::bulk_wait_read<0>();
  }
}
#endif

// Images without wgmma hold no code, and say so by their launch bounds.
constexpr int kImageThreads = PTX_SM90A ? kThreads : 32;

template <class T, int D>
__global__ void __launch_bounds__(kImageThreads, 1) attend_wgmma(Forward<T> a, const __grid_constant__ Maps maps) {
#if PTX_SM90A
  SHARED(Shared, shared);
  DYN_SMEM(raw);
  auto& room = *reinterpret_cast<Room<T, D>*>(raw);
  if (threadIdx.x == 0) {
    shared.ring.init(kConsumers / 32);
    ptx::mbar_init(&shared.queries, 1);
    ptx::fence_mbar_init();
  }
  // Later queries see more keys: the longest work first.
  const int block = static_cast<int>(gridDim.x - 1 - blockIdx.x), head = block % a.in.heads;
  Place at{head, head / a.in.group * D, block / a.in.heads * kRows, kNone};
  look<Side::kQueries>(shared.sight, a.in.spans, at.first);  // has the barrier after init
  at.start = next_seen<kRows>(shared.sight.seen, 0);
  if (threadIdx.x >= kConsumers) {
    ptx::registers_decrease<kProducerRegisters>();
    if (warp_id() == kConsumers / 32) produce(room, shared, maps, at);
  } else {
    ptx::registers_increase<kConsumerRegisters>();
    attend_group(room, shared, a, maps, at);
  }
#endif
}

template <class T, int D>
bool gpu_runs() {
  cudaFuncAttributes image{};
  CUDA_CHECK((find_attributes(image, attend_wgmma<T, D>)));
  return image.binaryVersion == 90 && image.maxThreadsPerBlock >= kThreads;
}

template <class T, int D>
void launch_blocks(const Forward<T>& a, cudaStream_t stream) {
  const Inputs<T>& in = a.in;
  const int64_t queries = in.spans.queries, keys = in.spans.keys, width = int64_t{in.heads} * D;
  const int64_t kv_width = width / in.group;
  const TensorMapEncoder encode = tensor_map_encoder();
  const Maps maps{tensor_map<T>(encode, {in.q, queries, width, in.q_stride, kRows}),
                  tensor_map<T>(encode, {in.k, keys, kv_width, in.k_stride, N}),
                  tensor_map<T>(encode, {in.v, keys, kv_width, in.v_stride, N}),
                  tensor_map<T>(encode, {a.y, queries, width, width, kGroupRows})};
  const dim3 grid(grid_size(div_ceil<int64_t>(queries, kRows) * in.heads));
  constexpr size_t kBytes = sizeof(Room<T, D>);
  CUDA_CHECK(allow_shared_bytes(attend_wgmma<T, D>, kBytes));
  CUDA_CHECK(launch(attend_wgmma<T, D>, {grid, dim3(kThreads), kBytes, stream}, a, maps));
}
}  // namespace

template <class T>
bool warpgroups_take(const Forward<T>& a) {
  const Inputs<T>& in = a.in;
  if (!in.vectors || in.scale <= 0 || in.spans.keys == 0) return false;
  return (in.dim == 64 && gpu_runs<T, 64>()) || (in.dim == 128 && gpu_runs<T, 128>());
}

template <class T>
void attend_by_warpgroups(const Forward<T>& a, cudaStream_t stream) {
  if (a.in.dim == 64) return launch_blocks<T, 64>(a, stream);
  launch_blocks<T, 128>(a, stream);
}
#define INSTANTIATE(T)                              \
  template bool warpgroups_take(const Forward<T>&); \
  template void attend_by_warpgroups(const Forward<T>&, cudaStream_t);
INSTANTIATE(bf16)
INSTANTIATE(fp16)
#undef INSTANTIATE
}  // namespace athanor::cuda::attention
