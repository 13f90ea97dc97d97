// Attention backward by warpgroups (sm_90a) with five products: one pass over tiles of 128 keys, which sums dk and dv
// in registers and adds dq, tile by tile of queries, to fp32 sums in memory. Layout: a block takes the keys of one
// head, with two warpgroups of 64 rows; ds goes through shared memory to the product that gives dq [Shah et al. 2024,
// sec. 3.3], a tile of which, 32 KiB for heads of 128, one warp adds to memory by bulk reduction while the next tile is
// computed. Compute bound. Deterministic: the keys that a tile of queries sees are added from the last one to the
// first, each when a counter says that the one before is in. Blocks take their keys in the same order, by a counter
// too, so that each waits only for blocks that have started. Under a causal mask they also meet queries in such an
// order that hardly any waits. No GPU has run it yet.
#include "cuda/attention/wgmma.h"
#include "cuda/attention/wgmma_backward.h"
#include "cuda/pack.h"
namespace athanor::cuda::attention {
namespace {

// What blocks share, in device memory; a tile is of kOrderedRows queries.
struct Sums {
  int2* keys;        // [tiles]: the first and the last tile of keys that its queries see; {1, 0}: none
  uint32_t* added;   // [H, tiles]: how many tiles of keys are added
  uint32_t* ticket;  // the next block's number
  float* dq;         // [H, tiles, 64 D], as warpgroups have it in registers (sums_place)
  int tiles;
};

template <class T, int D>
struct OrderedRoom {
  static constexpr int N = kOrderedRows, kSlots = D == 64 ? 8 : 4, kPlaces = 1;
  T a[kPlaces][kRows * D], b[kPlaces][kRows * D];  // own: k, v
  T changes[2][kRows * N];                         // ds of two tiles
  float sums[N * D];                               // dq of a tile of queries
  T slots[kSlots][N * D];                          // other: q, dy
  QueryStats stats[kSlots / 2][N];                 // of the queries of two slots
};

struct OrderedMaps {
  CUtensorMap k, v, q, dy, stats, dk, dv;
};

// Which keys each tile of queries sees, and counters of 0.
template <int N>
__global__ void __launch_bounds__(N) prepare_sums(SpanTable spans, Sums sums, int heads) {
  ptx::wait_for_earlier_kernels();
  SHARED(Sight<N>, sight);
  const int tile = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  look<Side::kQueries>(sight, spans, tile * N);
  const int first = next_seen<N>(sight.seen, 0);
  for (int head = thread; head < heads; head += N) sums.added[int64_t{head} * sums.tiles + tile] = 0;
  if (thread != 0) return;
  if (tile == 0) *sums.ticket = 0;
  const bool none = first == kNone;
  st8(sums.keys + tile, none ? make_uint2(1, 0) : make_uint2(first / kRows, (sight.last - 1) / kRows));
}

// Of a tile's sums, those that thread t of the warpgroups has in its registers 4n to 4n + 3; a warpgroup has half of
// the columns.
template <int D>
__device__ __forceinline__ int sums_place(int t, int n) {
  return (t / kGroupThreads * (D / 16) + n) * kGroupThreads * 4 + t % kGroupThreads * 4;
}

// Stores columns that are half a head apart, turned back by the angles of their row. table: of the columns of `left`.
template <int D, class T>
__device__ __forceinline__ void store_turned(T* to, const Pack<T, 8>& left, const Pack<T, 8>& right,
                                             const float* table) {
  const Pack<float, 8> cosines = load_pack<8>(table), sines = load_pack<8>(table + D / 2);
  float a[8], b[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float2 turned = rotate(left[i], right[i], cosines[i], -sines[i]);
    a[i] = turned.x, b[i] = turned.y;
  }
  store_values(to, a);
  store_values(to + D / 2, b);
}

// dq of a tile of queries of a head, from its sums, and turned back if there are angles. factor: the scale of the
// scores.
template <class T, int D>
__global__ void __launch_bounds__(kConsumers)
    round_sums(T* dq, int64_t stride, int queries, Sums sums, float factor, Angles angles) {
  ptx::wait_for_earlier_kernels();
  constexpr int N = kOrderedRows, kPitch = D + 8;  // so that the 8 rows of a store are in different banks
  SHARED(T, rows, [N * kPitch]);
  const int tile = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y);
  const int thread = static_cast<int>(threadIdx.x);
  const uint2 keys = ld8(sums.keys + tile);
  const float* from = sums.dq + (int64_t{head} * sums.tiles + tile) * N * D;
#pragma unroll
  for (int n = 0; n < D / 16; ++n) {
    const uint4 raw = keys.x > keys.y ? make_uint4(0, 0, 0, 0) : ld16(from + sums_place<D>(thread, n));
    const float x[4] = {__uint_as_float(raw.x), __uint_as_float(raw.y), __uint_as_float(raw.z), __uint_as_float(raw.w)};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = warp_id() % 4 * 16 + h * 8 + lane_id() / 4;
      const int column = thread / kGroupThreads * (D / 2) + n * 8 + lane_id() % 4 * 2;
      st4(rows + row * kPitch + column, word_of<T>(x[2 * h] * factor, x[2 * h + 1] * factor));
    }
  }
  __syncthreads();
  for (int i = thread; i < N * D / 16; i += kConsumers) {
    const int row = i / (D / 16), column = i % (D / 16) * 8, query = tile * N + row;
    if (query >= queries) continue;
    const Pack<T, 8> left = load_pack<8>(rows + row * kPitch + column);
    const Pack<T, 8> right = load_pack<8>(rows + row * kPitch + column + D / 2);
    T* to = dq + int64_t{query} * stride + head * D + column;
    if (angles.cos_sin) {
      store_turned<D>(to, left, right, angles.cos_sin + int64_t{angles.positions[query]} * D + column);
    } else {
      store_pack(to, left);
      store_pack(to + D / 2, right);
    }
  }
}

#if PTX_SM90A
constexpr int kChangesBarrier = kGroupBarrier + kGroups;

template <class R>
struct OrderedShared : Shared<R> {
  uint64_t full, empty;  // of the room's sums
  int block;             // by its ticket
  int first, last;       // tiles of queries that this block adds to

  __device__ __forceinline__ void init(const Sums& all) {  // followed by a barrier of the block
    if (threadIdx.x != 0) return;
    ptx::mbar_init(&full, kConsumers / 32);
    ptx::mbar_init(&empty, 1);
    block = static_cast<int>(atomicAdd(all.ticket, 1u));
    first = kNone, last = -1;
    Shared<R>::init();
  }
};

// The tiles of queries that a tile of keys adds to: also those between whose queries see keys on both sides of it.
struct Adds {
  const int2* keys;
  int own;  // the tile of keys
  int first, end;

  __device__ __forceinline__ bool to(int tile) const {
    const uint2 seen = ld8(keys + tile);
    return static_cast<int>(seen.x) <= own && own <= static_cast<int>(seen.y);
  }
  // The first one from `tile` on; `end` if there is none. Called by full warps.
  __device__ __forceinline__ int next(int tile) const {
    for (; tile < end; tile += 32) {
      const int at = tile + lane_id();
      const unsigned found = __ballot_sync(~0u, at < end && to(at));
      if (found) return tile + __ffs(static_cast<int>(found)) - 1;
    }
    return end;
  }
};

// Finds them with all threads of the block; contains a barrier.
template <class R>
__device__ __forceinline__ Adds find_adds(OrderedShared<R>& shared, const Sums& sums, int own) {
  Adds adds{sums.keys, own, 0, sums.tiles};
  for (int tile = static_cast<int>(threadIdx.x); tile < sums.tiles; tile += kThreads)
    if (adds.to(tile)) {
      atomicMin(&shared.first, tile);
      atomicMax(&shared.last, tile);
    }
  __syncthreads();
  adds.first = shared.first, adds.end = shared.last + 1;
  return adds;
}

template <int D, class R>
__device__ __forceinline__ void produce(R& room, OrderedShared<R>& shared, const OrderedMaps& maps, const Adds& adds,
                                        int kv, int group) {
  if (adds.end == 0) return shared.heads.fill_none(kv, kv + 1);
  constexpr int N = R::N;
  auto& ring = shared.ring;
  Turn<R::kSlots> turn;
  Turn<1> own;
  shared.heads.fill(own, [&](int place) {
    uint64_t* full = &shared.heads.full[place];
    copy_tile<kRows, D>(room.a[place], maps.k, full, kv * D, adds.own * kRows, sizeof room.b[place]);
    copy_panels<kRows, D>(room.b[place], maps.v, full, kv * D, adds.own * kRows);
  });
  for (int head = kv * group; head < (kv + 1) * group; ++head)
    for (int tile = adds.first; tile < adds.end;) {
      const int next = adds.next(tile + 1);
      const int then = next < adds.end ? next * N : head + 1 < (kv + 1) * group ? adds.first * N : kNone;
      ring.fill(turn, then, [&](int slot) {
        uint64_t* full = &ring.full[slot];
        auto& stats = room.stats[slot / 2];
        copy_tile<N, D>(room.slots[slot], maps.q, full, head * D, tile * N, sizeof stats);
        ptx::tma_load(stats, &maps.stats, full, 2 * tile * N, head);
      });
      ring.fill(turn, then,
                [&](int slot) { copy_tile<N, D>(room.slots[slot], maps.dy, &ring.full[slot], head * D, tile * N); });
      tile = next;
    }
}

// Waits until so many tiles of keys are added. Several seconds would be a mistake: an error then ends the launch, which
// would else never end.
__device__ __forceinline__ void wait_for_turn(const uint32_t* added, uint32_t before) {
  constexpr uint32_t kMostTries = 1U << 28;
  for (uint32_t tries = 0; ptx::load_acquire(added) != before; ++tries) {
    if (tries == kMostTries) __trap();
    __nanosleep(20);
  }
}

// Adds a block's dq to memory: the first one of a tile of queries stores it.
template <class R>
__device__ __forceinline__ void add_all(R& room, OrderedShared<R>& shared, const Sums& sums, const Adds& adds, int kv,
                                        int group) {
  uint32_t parity = 0;
  for (int head = kv * group; head < (kv + 1) * group; ++head)
    for (int tile = adds.first; tile < adds.end; tile = adds.next(tile + 1)) {
      if (lane_id() == 0) {
        const int64_t at = int64_t{head} * sums.tiles + tile;
        float* to = sums.dq + at * static_cast<int64_t>(sizeof room.sums / sizeof(float));
        const uint32_t before = ld8(adds.keys + tile).y - static_cast<uint32_t>(adds.own);
        ptx::mbar_wait(&shared.full, parity);
        if (before != 0) wait_for_turn(sums.added + at, before);
        ptx::fence_proxy_async_global();
        if (before == 0)
          ptx::bulk_store(to, room.sums, sizeof room.sums);
        else
          ptx::bulk_reduce_add(to, room.sums, sizeof room.sums);
        ptx::bulk_commit();
        ptx::bulk_wait_read<0>();
        ptx::mbar_arrive(&shared.empty);
        ptx::bulk_wait<0>();
        ptx::store_release(sums.added + at, before + 1);
      }
      parity ^= 1;
    }
}

// Clears the keys of a warp that no query sees, so that a change of 0 times NaN is none. k: the warpgroup's first row.
template <int D, class T>
__device__ __forceinline__ void clear_unseen(T* k, const Seen* seen) {
  const int row = lane_id() / 2, half = lane_id() % 2 * (kBoxColumns / 2);
  const Seen x = load_seen(seen + row);
  if (x.first < x.last) return;
#pragma unroll
  for (int c = 0; c < D; c += kBoxColumns) {
#pragma unroll
    for (int i = 0; i < kBoxColumns / 2; i += 8)
      st16(k + c * kRows + (warp_id() % 4 * 16 + row) * kBoxColumns + half + i, make_uint4(0, 0, 0, 0));
  }
}

// Writes ds, as the left operand of a product with queries in columns, to a tile [kRows, N]; rows: the warpgroup's
// first.
template <int N, class T>
__device__ __forceinline__ void write_changes(T* rows, const uint32_t (&changes)[N / 16][4]) {
  const int lane = lane_id(), row = warp_id() % 4 * 16 + lane % 16;
#pragma unroll
  for (int n = 0; n < N / 16; ++n) {
    const int chunk = (n * 2 + lane / 16) % 8;
    ptx::stmatrix(rows + n / 4 * kBoxColumns * kRows + row * kBoxColumns + (chunk ^ row % 8) * 8, changes[n]);
  }
}

// o [64, N] = A^T B: A is a panel with kRows rows, B the columns of another one from `from` on. The swizzle is of
// addresses, so columns may begin within the 128 bytes of a row, as k does in wgmma_rows().
template <int N, class T>
__device__ __forceinline__ void wgmma_panels(Accumulators<1, N>& o, const T* a, const T* b, int from) {
  constexpr ptx::TileLayout kPanel{.leading = kRows * kRowBytes};
  const uint64_t x = ptx::matrix_descriptor(a, kPanel), y = ptx::matrix_descriptor(b, kPanel) + from / 8;
  ptx::wgmma_fence(o);
#pragma unroll
  for (int k = 0; k < kRows; k += 16)
    ptx::wgmma<T, T, ptx::Major::kRows, ptx::Major::kRows>(flat<N>(o), x + k * (kRowBytes / 16),
                                                           y + k * (kRowBytes / 16), k > 0);
  ptx::wgmma_commit();
}

// The slots of the next tile of queries: q, and dy behind it. Rows that nobody sees are cleared.
template <int D, class R>
__device__ __forceinline__ int open_tile(R& room, OrderedShared<R>& shared, Turn<R::kSlots>& turn, int start) {
  const int q = shared.ring.wait(turn), dy = shared.ring.wait_next(turn, q);
  if (start + R::N > shared.sight.last) {
    const int from = max(shared.sight.last - start, 0);
    clear_rows<R::N, D>(room.slots[q], from);
    clear_rows<R::N, D>(room.slots[dy], from);
    publish_rows();
  }
  return q;
}

// Scores of a tile begin while dq of the tile before is on its way to memory.
template <class T, int D, class R>
__device__ __forceinline__ void meet_queries(Accumulators<1, D>& dk, Accumulators<1, D>& dv, R& room,
                                             OrderedShared<R>& shared, const Own<T>& own, int start, float scale) {
  constexpr int N = R::N;
  auto& ring = shared.ring;
  const int group = group_id();
  // The warpgroup's columns of k.
  const T* half = room.a[0] + (D == 64 ? 0 : group * kRows * kBoxColumns);
  const int from = D == 64 ? group * (D / 2) : 0;
  Turn<R::kSlots> turn;
  Turn<2> tile;
  uint32_t parity = 1;  // of the sums' phase that must be over; the first wait passes
  Accumulators<1, N> p, ds;
  Accumulators<1, D / 2> dq;  // the warpgroup's columns
  uint32_t weights[N / 16][4], changes[N / 16][4];
  int q = open_tile<D>(room, shared, turn, start);
  // Behind the wait for all products of a tile but the next one's scores.
  const auto hand_over = [&](int slot) {
    ring.release(slot);
    ring.release(slot + 1);
    ptx::mbar_wait(&shared.empty, parity);
#pragma unroll
    for (int n = 0; n < D / 16; ++n)
      st16(room.sums + sums_place<D>(static_cast<int>(threadIdx.x), n),
           make_uint4(__float_as_uint(dq[0][n][0]), __float_as_uint(dq[0][n][1]), __float_as_uint(dq[0][n][2]),
                      __float_as_uint(dq[0][n][3])));
    ptx::fence_proxy_async();
    __syncwarp();
    if (lane_id() == 0) ptx::mbar_arrive(&shared.full);
  };
  wgmma_rows<D, kRows, N>(p, own.a, room.slots[q]);
  for (;;) {
    const int now = q, next = ring.next[now];
    const QueryStats* stats = room.stats[now / 2];
    const bool all = all_see<16>(own.warp, start, start + N);
    wgmma_rows<D, kRows, N>(ds, own.b, room.slots[now + 1]);
    ptx::wgmma_wait<1>(p);
    weigh_keys<N>(p, stats, scale);
    hide_unseen<1, N>(p, own.warp, start, all);
    pack_weights<T, N>(weights, p);
    wgmma_columns<D, N>(dv, weights, room.slots[now + 1]);
    ptx::wgmma_wait<1>(ds);
    differentiate_keys<N>(ds, p, stats);
    hide_unseen<1, N>(ds, own.warp, start, all);
    pack_weights<T, N>(changes, ds);
    wgmma_columns<D, N>(dk, changes, room.slots[now]);
    T* rows = room.changes[tile.slot];
    write_changes<N>(rows + group * kGroupRows * kBoxColumns, changes);
    ptx::fence_proxy_async();
    ptx::bar_sync(kChangesBarrier, kConsumers);
    ptx::wgmma_wait<0>(dk, dv, weights, changes);  // else registers do not suffice
    if (next == kNone) {
      wgmma_panels<D / 2>(dq, rows, half, from);
      break;
    }
    q = open_tile<D>(room, shared, turn, next);
    wgmma_panels<D / 2>(dq, rows, half, from);
    wgmma_rows<D, kRows, N>(p, own.a, room.slots[q]);
    ptx::wgmma_wait<1>(dq);
    hand_over(now);
    parity ^= 1;
    tile.advance();
    start = next;
  }
  ptx::wgmma_wait<0>(dq);
  hand_over(q);
}
#endif

template <class T, int D>
__global__ void __launch_bounds__(kImageThreads, 1)
    ordered_backward_wgmma(Inputs<T> in, Angles angles, const __grid_constant__ OrderedMaps maps, Sums sums) {
  ptx::wait_for_earlier_kernels();
#if PTX_SM90A
  using R = OrderedRoom<T, D>;
  SHARED(OrderedShared<R>, shared);
  DYN_SMEM(raw);
  auto& room = *reinterpret_cast<R*>(raw);
  shared.init(sums);
  __syncthreads();
  // Heads one after the other, so that the sums of few are in use, in L2. Last keys first: a block's first queries wait
  // for none, later ones for what the block before has added two tiles earlier.
  const int tiles = static_cast<int>(gridDim.x) / (in.heads / in.group), kv = shared.block / tiles;
  const int own_tile = tiles - 1 - shared.block % tiles;
  look<Side::kKeys>(shared.sight, in.spans, own_tile * kRows);
  const Adds adds = find_adds(shared, sums, own_tile);
  if (threadIdx.x >= kConsumers) {
    ptx::registers_decrease<kProducerRegisters>();
    if (warp_id() == kProducer) produce<D>(room, shared, maps, adds, kv, in.group);
    if (warp_id() == kStorer) {
      add_all(room, shared, sums, adds, kv, in.group);
      shared.heads.store_all(kv, kv + 1, [&](int place, int head) {
        store_tile<D>(maps.dv, room.b[place], head * D, own_tile * kRows);
        store_tile<D>(maps.dk, room.a[place], head * D, own_tile * kRows);
      });
    }
    return;
  }
  ptx::registers_increase<kConsumerRegisters>();
  Turn<1> heads;
  shared.heads.wait(heads);
  const Own<T> own(room, 0, shared.sight);
  Accumulators<1, D> dk = {}, dv = {};
  if (adds.end != 0) {
    clear_unseen<D>(own.a, own.warp);
    publish_rows();
    meet_queries<T, D>(dk, dv, room, shared, own, adds.first * R::N, in.scale * kLog2e);
  }
  const float one[1][2] = {{1, 1}};
  ptx::bar_sync(kChangesBarrier, kConsumers);  // products of both warpgroups have read all keys
  write_rows<D>(own.b, dv, one);
  write_turned<D>(own.a, dk, angles, in.scale, own_tile * kRows, in.spans.keys);
  shared.heads.publish(0);
#endif
}

// ---- launchers

template <class T, int D>
void launch_all(const Backward<T>& a, const Sums& sums, cudaStream_t stream) {
  using Room = OrderedRoom<T, D>;
  static_assert(sizeof(Room) <= 224 << 10, "a block has 227 KiB, with its Sight and its ring");
  const Inputs<T>& in = a.in;
  const int64_t queries = in.spans.queries, keys = in.spans.keys, width = int64_t{in.heads} * D;
  const TensorMapEncoder encode = tensor_map_encoder();
  const auto of_queries = [&](const T* data, int64_t stride) {
    return tensor_map<T>(encode, {data, queries, width, stride, Room::N});
  };
  const auto of_keys = [&](const T* data, int64_t stride) {
    return tensor_map<T>(encode, {data, keys, width / in.group, stride, kRows});
  };
  const OrderedMaps maps{
      of_keys(in.k, in.k_stride),
      of_keys(in.v, in.v_stride),
      of_queries(in.q, in.q_stride),
      of_queries(a.dy, width),
      tensor_map<float>(encode, {&a.stats->lse, in.heads, 2 * queries, 2 * stats_rows(queries), 1, 2 * Room::N}),
      of_keys(a.dk, a.dk_stride),
      of_keys(a.dv, a.dv_stride)};
  const unsigned tiles = static_cast<unsigned>(sums.tiles);
  CUDA_CHECK(launch(prepare_sums<Room::N>, {dim3(tiles), dim3(Room::N), 0, stream}, in.spans, sums, in.heads));
  const dim3 blocks(grid_size(div_ceil<int64_t>(keys, kRows) * (in.heads / in.group)));
  CUDA_CHECK(
      launch(ordered_backward_wgmma<T, D>, {blocks, dim3(kThreads), sizeof(Room), stream}, in, a.angles, maps, sums));
  const dim3 of_heads(tiles, static_cast<unsigned>(in.heads));
  CUDA_CHECK(launch(round_sums<T, D>, {of_heads, dim3(kConsumers), 0, stream}, a.dq, a.dq_stride, in.spans.queries,
                    sums, in.scale, a.angles));
}
}  // namespace

template <class T>
void differentiate_in_order(const Backward<T>& a, void* scratch, cudaStream_t stream) {
  const Inputs<T>& in = a.in;
  const OrderedScratch at(in.spans.queries, in.heads, in.dim);
  char* memory = static_cast<char*>(scratch);
  const Sums sums{reinterpret_cast<int2*>(memory + at.keys), reinterpret_cast<uint32_t*>(memory + at.added),
                  reinterpret_cast<uint32_t*>(memory + at.ticket), reinterpret_cast<float*>(memory + at.dq),
                  static_cast<int>(at.tiles)};
  if (in.dim == 64) return launch_all<T, 64>(a, sums, stream);
  launch_all<T, 128>(a, sums, stream);
}
#define INSTANTIATE(T) template void differentiate_in_order(const Backward<T>&, void*, cudaStream_t);
INSTANTIATE(bf16)
INSTANTIATE(fp16)
#undef INSTANTIATE
}  // namespace athanor::cuda::attention
