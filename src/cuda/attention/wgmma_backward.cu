// Attention backward by warpgroups (sm_90a), with wgmma and TMA, in the two passes of backward.cu; p and ds go from
// accumulators into the next GEMM without leaving registers [Shah et al. 2024, sec. 3]. Layout: a block takes 128 rows
// of its side, of one head after the other (wgmma_schedule.h), two warpgroups 64 each; one warp copies tiles of the
// other side's two tensors into a ring, and the first tiles of the next head while a head is computed. Exponentials of
// one warpgroup overlap GEMMs of the other, and the next GEMM of its own. Compute bound. Deterministic: sums are over
// the other side's rows in order, head by head of the group. No GPU has run it yet.
#include "cuda/attention/wgmma.h"
#include "cuda/attention/wgmma_backward.h"
#include "cuda/attention/wgmma_schedule.h"
#include "cuda/pack.h"

namespace athanor::cuda::attention {
namespace {

// Dynamic shared memory: the block's own rows of two tensors, for two heads if they fit, and tiles of N rows of the
// other side's two tensors.
template <class T, int D, int Others, int SlotCount>
struct Smem {
  static constexpr int N = Others, kSlots = SlotCount, kPlaces = D == 64 ? 2 : 1;
  T a[kPlaces][kRows * D], b[kPlaces][kRows * D];
  T slots[kSlots][N * D];
};
template <class T, int D>  // own: k, v; other: q, dy. N is limited by the registers that dk and dv leave
struct KeySmem : Smem<T, D, D == 64 ? 96 : 64, 8> {
  QueryStats stats[KeySmem::kSlots / 2][KeySmem::N];  // statistics of the queries in each pair of slots
};
template <class T, int D>  // own: q, dy; other: k, v
struct QuerySmem : Smem<T, D, 128, D == 64 ? 8 : 4> {
  QueryStats stats[QuerySmem::kPlaces][kRows];  // statistics of the block's queries
};

struct KeyMaps {
  CUtensorMap k, v, q, dy, stats, dk, dv;
};
struct QueryMaps {
  CUtensorMap q, dy, stats, k, v, dq;
};

#if PTX_SM90A
struct Place {
  int head, end;  // the block's heads of its side: [head, end)
  int first;      // first row of the block
  int start;      // first row of the other side that its rows see; kNone: none
};

// ---- keys: dk and dv

// group: query heads per key head.
template <int D, class R>
__device__ __forceinline__ void produce_queries(R& smem, Shared<R>& shared, const KeyMaps& maps, const Place& at,
                                                int group) {
  if (at.start == kNone) return shared.heads.fill_none(at.head, at.end);
  constexpr int N = R::N;
  auto& ring = shared.ring;
  PipelineState<R::kSlots> pipe;
  PipelineState<R::kPlaces> own;
  int start = at.start, head = at.head * group;
  while (head < at.end * group) {
    const int next = next_seen<kRows>(shared.sight.seen, start + N);
    const int then = next == kNone && (head + 1) % group ? at.start : next;  // kNone: the key head's last tile
    ring.fill(pipe, then, [&](int slot) {
      uint64_t* full = &ring.full[slot];
      auto& stats = smem.stats[slot / 2];
      copy_tile<N, D>(smem.slots[slot], maps.q, full, head * D, start, sizeof stats);
      ptx::tma_load(stats, &maps.stats, full, 2 * start, head);
    });
    ring.fill(pipe, then,
              [&](int slot) { copy_tile<N, D>(smem.slots[slot], maps.dy, &ring.full[slot], head * D, start); });
    if (start == at.start && head % group == 0)
      shared.heads.fill(own, [&](int place) {
        uint64_t* full = &shared.heads.full[place];
        copy_tile<kRows, D>(smem.a[place], maps.k, full, head / group * D, at.first, sizeof smem.b[place]);
        copy_panels<kRows, D>(smem.b[place], maps.v, full, head / group * D, at.first);
      });
    if (next == kNone) ++head;
    start = next == kNone ? at.start : next;
  }
}

template <class T, int D, class R>
__device__ __forceinline__ void meet_queries(Accumulators<1, D>& dk, Accumulators<1, D>& dv, R& smem, Shared<R>& shared,
                                             PipelineState<R::kSlots>& pipe, const Own<T>& own, int start,
                                             float scale) {
  constexpr int N = R::N;
  auto& ring = shared.ring;
  Accumulators<1, N> p, ds;
  uint32_t weights[N / 16][4], changes[N / 16][4];
  while (start != kNone) {
    const int q = ring.wait(pipe), dy = ring.wait_next(pipe, q), next = ring.next[q];
    if (start + N > shared.sight.last) {
      clear_rows<N, D>(smem.slots[q], shared.sight.last - start);
      clear_rows<N, D>(smem.slots[dy], shared.sight.last - start);
      publish_rows();
    }
    if (next_seen<kGroupRows>(own.group, start) < start + N) {
      const QueryStats* stats = smem.stats[q / 2];
      const bool all = all_see<16>(own.warp, start, start + N);
      wgmma_rows<D, kRows, N>(p, own.a, smem.slots[q]);
      wgmma_rows<D, kRows, N>(ds, own.b, smem.slots[dy]);
      ptx::wgmma_wait<1>(p);
      weigh_keys<N>(p, stats, scale);
      hide_unseen<1, N>(p, own.warp, start, all);
      pack_weights<T, N>(weights, p);
      wgmma_columns<D, N>(dv, weights, smem.slots[dy]);
      ptx::wgmma_wait<1>(ds);
      differentiate_keys<N>(ds, p, stats);
      hide_unseen<1, N>(ds, own.warp, start, all);
      pack_weights<T, N>(changes, ds);
      wgmma_columns<D, N>(dk, changes, smem.slots[q]);
      ptx::wgmma_wait<0>(dk, dv, changes, weights);
    }
    ring.release(q);
    ring.release(dy);
    start = next;
  }
}
#endif

template <class T, int D>
__global__ void __launch_bounds__(kImageThreads, 1)
    keys_backward_wgmma(Inputs<T> in, Angles angles, const __grid_constant__ KeyMaps maps,
                        const __grid_constant__ Schedule schedule) {
#if PTX_SM90A
  using R = KeySmem<T, D>;
  SHARED(Shared<R>, shared);
  DYN_SMEM(raw);
  auto& smem = *reinterpret_cast<R*>(raw);
  shared.init();
  ptx::wait_for_earlier_kernels();
  // Longest work first: earlier keys are seen by more queries.
  const Schedule::Run run = schedule.run(static_cast<int>(blockIdx.x));
  Place at{run.head, run.end, run.tile * kRows, kNone};
  look<Side::kKeys>(shared.sight, in.spans, at.first);  // look() contains the barrier that init() needs
  at.start = next_seen<kRows>(shared.sight.seen, 0);
  if (threadIdx.x >= kConsumers) {
    ptx::registers_decrease<kProducerRegisters>();
    if (warp_id() == kProducer) produce_queries<D>(smem, shared, maps, at, in.group);
    if (warp_id() == kStorer)
      shared.heads.store_all(at.head, at.end, [&](int place, int kv) {
        store_tile<D>(maps.dv, smem.b[place], kv * D, at.first);
        store_tile<D>(maps.dk, smem.a[place], kv * D, at.first);
      });
    return;
  }
  ptx::registers_increase<kConsumerRegisters>();
  PipelineState<R::kSlots> pipe;
  PipelineState<R::kPlaces> heads;
  for (int left = at.end - at.head; left > 0; --left) {
    const int place = shared.heads.wait(heads);
    const Own<T> own(smem, place, shared.sight);
    Accumulators<1, D> dk = {}, dv = {};
    if (at.start != kNone) meet_queries<T, D>(dk, dv, smem, shared, pipe, own, at.start, in.scale * kLog2e);
    const float one[1][2] = {{1, 1}};
    write_rows<D>(own.b, dv, one);
    write_rotated<D>(own.a, dk, angles, in.scale, at.first, in.spans.keys);
    shared.heads.publish(place);
  }
#endif
}

// ---- queries: dq

#if PTX_SM90A
template <int D, class R>
__device__ __forceinline__ void produce_keys(R& smem, Shared<R>& shared, const QueryMaps& maps, const Place& at,
                                             int group) {
  if (at.start == kNone) return shared.heads.fill_none(at.head, at.end);
  constexpr int N = R::N;
  auto& ring = shared.ring;
  PipelineState<R::kSlots> pipe;
  PipelineState<R::kPlaces> own;
  for (int head = at.head; head < at.end; ++head) {
    for (int start = at.start; start != kNone;) {
      const int next = next_seen<kRows>(shared.sight.seen, start + N);
      const auto push = [&](const CUtensorMap& map) {
        ring.fill(pipe, next,
                  [&](int slot) { copy_tile<N, D>(smem.slots[slot], map, &ring.full[slot], head / group * D, start); });
      };
      push(maps.k);
      push(maps.v);
      if (start == at.start)
        shared.heads.fill(own, [&](int place) {
          uint64_t* full = &shared.heads.full[place];
          auto& stats = smem.stats[place];
          copy_tile<kRows, D>(smem.a[place], maps.q, full, head * D, at.first, sizeof smem.b[place] + sizeof stats);
          ptx::tma_load(stats, &maps.stats, full, 2 * at.first, head);
          copy_panels<kRows, D>(smem.b[place], maps.dy, full, head * D, at.first);
        });
      start = next;
    }
  }
}

// For the thread's queries and keys, weigh_queries() computes p and differentiate_queries() computes ds. stats: those
// of its first query; scale: times log2(e).
template <int N>
__device__ __forceinline__ void weigh_queries(Accumulators<1, N>& p, const QueryStats* stats, float scale) {
  const float lse[2] = {stats[0].lse, stats[8].lse};
  for_elements<1, N>(p, [&](float& x, int, int h, int) { x = ptx::exp2_approx(fmaf(x, scale, -lse[h])); });
}
template <int N>
__device__ __forceinline__ void differentiate_queries(Accumulators<1, N>& ds, const Accumulators<1, N>& p,
                                                      const QueryStats* stats) {
  const float dy_by_y[2] = {stats[0].dy_by_y, stats[8].dy_by_y};
#pragma unroll
  for (int n = 0; n < N / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) ds[0][n][i] = p[0][n][i] * (ds[0][n][i] - dy_by_y[i / 2]);
  }
}

template <class T, int D, class R>
__device__ __forceinline__ void meet_keys(Accumulators<1, D>& dq, R& smem, Shared<R>& shared,
                                          PipelineState<R::kSlots>& pipe, const Own<T>& own, const QueryStats* stats,
                                          int start, float scale) {
  constexpr int N = R::N;
  auto& ring = shared.ring;
  Accumulators<1, N> p, ds;
  uint32_t changes[N / 16][4] = {};
  // If registers suffice, a tile's last GEMM overlaps the first one of the next tile, and its keys stay in their slot
  // until then.
  constexpr bool kRunsOn = D == 64;
  int held = -1;
  while (start != kNone) {
    const int k = ring.wait(pipe), v = ring.wait_next(pipe, k), next = ring.next[k];
    if (start + N > shared.sight.last) {
      clear_rows<N, D>(smem.slots[k], shared.sight.last - start);
      publish_rows();
    }
    if (next_seen<kGroupRows>(own.group, start) < start + N) {
      const bool all = all_see<16>(own.warp, start, start + N);
      wgmma_rows<D, kRows, N>(p, own.a, smem.slots[k]);
      wgmma_rows<D, kRows, N>(ds, own.b, smem.slots[v]);
      if constexpr (kRunsOn) {
        ptx::wgmma_wait<1>(p, dq, changes);
        if (held >= 0) ring.release(held);
        held = k;
      } else {
        ptx::wgmma_wait<1>(p);
      }
      weigh_queries<N>(p, stats, scale);
      hide_unseen<1, N>(p, own.warp, start, all);
      ptx::wgmma_wait<0>(ds);
      ring.release(v);
      differentiate_queries<N>(ds, p, stats);
      hide_unseen<1, N>(ds, own.warp, start, all);
      pack_weights<T, N>(changes, ds);
      wgmma_columns<D, N>(dq, changes, smem.slots[k]);
      if constexpr (!kRunsOn) {
        ptx::wgmma_wait<0>(dq, changes);
        ring.release(k);
      }
    } else {
      if constexpr (kRunsOn) {  // after more skipped tiles than slots, the producer would wait for the held one
        ptx::wgmma_wait<0>(dq, changes);
        if (held >= 0) ring.release(held);
        held = -1;
      }
      ring.release(v);
      ring.release(k);
    }
    start = next;
  }
  if constexpr (kRunsOn) {
    ptx::wgmma_wait<0>(dq, changes);
    if (held >= 0) ring.release(held);
  }
}
#endif

template <class T, int D>
__global__ void __launch_bounds__(kImageThreads, 1)
    queries_backward_wgmma(Inputs<T> in, Angles angles, const __grid_constant__ QueryMaps maps,
                           const __grid_constant__ Schedule schedule) {
#if PTX_SM90A
  using R = QuerySmem<T, D>;
  SHARED(Shared<R>, shared);
  DYN_SMEM(raw);
  auto& smem = *reinterpret_cast<R*>(raw);
  shared.init();
  ptx::wait_for_earlier_kernels();
  // Longest work first: later queries see more keys.
  const Schedule::Run run = schedule.run(static_cast<int>(blockIdx.x));
  Place at{run.head, run.end, (schedule.tiles - 1 - run.tile) * kRows, kNone};
  look<Side::kQueries>(shared.sight, in.spans, at.first);  // look() contains the barrier that init() needs
  at.start = next_seen<kRows>(shared.sight.seen, 0);
  if (threadIdx.x >= kConsumers) {
    ptx::registers_decrease<kProducerRegisters>();
    if (warp_id() == kProducer) produce_keys<D>(smem, shared, maps, at, in.group);
    if (warp_id() == kStorer)
      shared.heads.store_all(at.head, at.end,
                             [&](int place, int head) { store_tile<D>(maps.dq, smem.a[place], head * D, at.first); });
    return;
  }
  ptx::registers_increase<kConsumerRegisters>();
  PipelineState<R::kSlots> pipe;
  PipelineState<R::kPlaces> heads;
  for (int left = at.end - at.head; left > 0; --left) {
    const int place = shared.heads.wait(heads);
    const Own<T> own(smem, place, shared.sight);
    const QueryStats* stats = smem.stats[place] + warp_id() * 16 + lane_id() / 4;
    Accumulators<1, D> dq = {};
    if (at.start != kNone) meet_keys<T, D>(dq, smem, shared, pipe, own, stats, at.start, in.scale * kLog2e);
    write_rotated<D>(own.a, dq, angles, in.scale, at.first, in.spans.queries);
    shared.heads.publish(place);
  }
#endif
}

// ---- launchers

template <class Smem, class Maps, class T>
void launch_blocks(void (*kernel)(Inputs<T>, Angles, Maps, Schedule), int rows, int heads, const Backward<T>& a,
                   const Maps& maps, cudaStream_t stream) {
  static_assert(sizeof(Smem) <= 224 << 10, "a block has 227 KiB, with its Sight and its ring");
  const Schedule work = schedule(rows, kRows, heads);
  CUDA_CHECK(
      launch(kernel, {dim3(grid_size(work.blocks)), dim3(kThreads), sizeof(Smem), stream}, a.in, a.angles, maps, work));
}

template <class T, int D>
void launch_both(const Backward<T>& a, cudaStream_t stream) {
  using Keys = KeySmem<T, D>;
  using Queries = QuerySmem<T, D>;
  const Inputs<T>& in = a.in;
  const int64_t queries = in.spans.queries, keys = in.spans.keys, width = int64_t{in.heads} * D;
  const int kv_heads = in.heads / in.group;
  const TensorMapEncoder encode = tensor_map_encoder();
  const auto of_queries = [&](const T* data, int64_t stride, uint32_t rows) {
    return tensor_map<T>(encode, {data, queries, width, stride, rows});
  };
  const auto of_keys = [&](const T* data, int64_t stride, uint32_t rows) {
    return tensor_map<T>(encode, {data, keys, width / in.group, stride, rows});
  };
  const auto of_stats = [&](uint32_t rows) {
    return tensor_map<float>(encode, {&a.stats->lse, in.heads, 2 * queries, 2 * stats_rows(queries), 1, 2 * rows});
  };
  const KeyMaps key_maps{of_keys(in.k, in.k_stride, kRows),
                         of_keys(in.v, in.v_stride, kRows),
                         of_queries(in.q, in.q_stride, Keys::N),
                         of_queries(a.dy, width, Keys::N),
                         of_stats(Keys::N),
                         of_keys(a.dk, a.dk_stride, kRows),
                         of_keys(a.dv, a.dv_stride, kRows)};
  launch_blocks<Keys>(keys_backward_wgmma<T, D>, in.spans.keys, kv_heads, a, key_maps, stream);
  const QueryMaps query_maps{of_queries(in.q, in.q_stride, kRows),
                             of_queries(a.dy, width, kRows),
                             of_stats(kRows),
                             of_keys(in.k, in.k_stride, Queries::N),
                             of_keys(in.v, in.v_stride, Queries::N),
                             of_queries(a.dq, a.dq_stride, kRows)};
  launch_blocks<Queries>(queries_backward_wgmma<T, D>, in.spans.queries, in.heads, a, query_maps, stream);
}

template <class T, int D>
bool has_images() {
  return has_image(keys_backward_wgmma<T, D>) && has_image(queries_backward_wgmma<T, D>);
}
}  // namespace

template <class T>
bool warpgroups_take(const Backward<T>& a) {
  const Inputs<T>& in = a.in;
  if (!in.vectors || in.scale <= 0 || in.softcap > 0 || in.spans.sparse.group > 0) return false;
  if (in.spans.queries == 0 || in.spans.keys == 0) return false;
  if (!aligned16(a.angles.cos_sin)) return false;
  return (in.dim == 64 && has_images<T, 64>()) || (in.dim == 128 && has_images<T, 128>());
}

template <class T>
void differentiate_by_warpgroups(const Backward<T>& a, cudaStream_t stream) {
  if (a.in.dim == 64) return launch_both<T, 64>(a, stream);
  launch_both<T, 128>(a, stream);
}
#define INSTANTIATE(T)                               \
  template bool warpgroups_take(const Backward<T>&); \
  template void differentiate_by_warpgroups(const Backward<T>&, cudaStream_t);
INSTANTIATE(bf16)
INSTANTIATE(fp16)
#undef INSTANTIATE
}  // namespace athanor::cuda::attention
