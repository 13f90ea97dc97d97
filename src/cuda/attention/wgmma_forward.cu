// Attention forward by warpgroups (sm_90a), as forward.cu, with wgmma and TMA [Shah et al. 2024].
// Layout: a block takes 128 queries of one head. One warp copies tiles of keys and values into a ring in order of use;
// two warpgroups own 64 queries each, with scores and sums in registers. The softmax of a tile overlaps the product
// with the previous tile's values. Compute bound. Deterministic: the sums of a row are over its keys in order. No GPU
// has run it yet.
#include "cuda/attention/softmax.h"
#include "cuda/attention/wgmma.h"
#include "cuda/attention/wgmma_tiles.h"

namespace athanor::cuda::attention {
namespace {

constexpr int N = 128;     // keys per tile
constexpr int kSlots = 4;  // two for keys, two for values; more do not fit with D = 128

struct Maps {
  CUtensorMap q, k, v, y;
};

template <class T, int D>
struct Room {         // dynamic shared memory
  T rows[kRows * D];  // queries, later y
  T slots[kSlots][N * D];
};

#if PTX_SM90A
struct Shared {
  Sight<kRows> sight;
  Ring<kSlots> ring;
  uint64_t queries;
};

struct Place {
  int head, kv, first;  // query head, column of keys and values, the block's first query
  int start;            // the first key that they see; kNone: none
};

// ---- the producer warp

template <class T, int D>
__device__ __forceinline__ void produce(Room<T, D>& room, Shared& shared, const Maps& maps, const Place& at) {
  if (at.start == kNone) return;
  if (lane_id() == 0) copy_tile<kRows, D>(room.rows, maps.q, &shared.queries, at.head * D, at.first);
  Ring<kSlots>& ring = shared.ring;
  Turn<kSlots> turn;
  const auto push = [&](const CUtensorMap& map, int row, int next) {
    ring.fill(turn, next, [&](int slot) { copy_tile<N, D>(room.slots[slot], map, &ring.full[slot], at.kv, row); });
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

// Computes the warpgroup's rows. queries: its rows of the tile; seen: that of the warp's rows.
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
  ptx::wgmma_wait<0>(s);
  ring.release(keys);
  add_scores();
  pack_weights<T, N>(weights, s);
  while (next != kNone) {
    keys = ring.wait(turn);
    wgmma_rows<D, kRows, N>(s, queries, room.slots[keys]);
    const int values = ring.wait(turn);
    wgmma_columns<D, N>(o, weights, room.slots[values]);
    ptx::wgmma_wait<1>(s);
    start = next, next = ring.next[keys];
    ring.release(keys);
    add_scores();
    ptx::wgmma_wait_after(fminf(softmax.sum[0][0], softmax.sum[0][1]));
    ptx::wgmma_wait<0>(o, weights);
    ring.release(values);
    multiply_by_row<1, D>(o, shrink);
    pack_weights<T, N>(weights, s);
  }
  const int values = ring.wait(turn);
  if (start + N > shared.sight.last) {
    clear_rows<N, D>(room.slots[values], shared.sight.last - start);
    publish_rows();
  }
  wgmma_columns<D, N>(o, weights, room.slots[values]);
  ptx::wgmma_wait<0>(o);
}

template <class T, int D>
__device__ __forceinline__ void attend_group(Room<T, D>& room, Shared& shared, const Forward<T>& a, const Maps& maps,
                                             const Place& at) {
  const int group = group_id(), own = warp_id() * 16;
  T* rows = room.rows + group * kGroupRows * kBoxColumns;
  Accumulators<1, D> o = {};
  Softmax<1> softmax;
  if (at.start != kNone)
    consume<T, D>(o, softmax, room, shared, rows, shared.sight.seen + own, at.start, a.in.scale * kLog2e);
  float factor[1][2];
  finish<1>(factor, softmax, a, at.first + own, at.head);
  store_rows<D>(maps.y, {at.head * D, at.first + group * kGroupRows}, rows, o, factor);
}
#endif

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
  // Longest work first: later queries see more keys.
  const int block = static_cast<int>(gridDim.x - 1 - blockIdx.x), head = block % a.in.heads;
  Place at{head, head / a.in.group * D, block / a.in.heads * kRows, kNone};
  look<Side::kQueries>(shared.sight, a.in.spans, at.first);  // contains the barrier that init needs
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
  CUDA_CHECK(launch(attend_wgmma<T, D>, {grid, dim3(kThreads), kBytes, stream}, a, maps));
}
}  // namespace

template <class T>
bool warpgroups_take(const Forward<T>& a) {
  const Inputs<T>& in = a.in;
  if (!in.vectors || in.scale <= 0 || in.spans.keys == 0) return false;
  return (in.dim == 64 && has_image(attend_wgmma<T, 64>)) || (in.dim == 128 && has_image(attend_wgmma<T, 128>));
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
