// Attention forward by warpgroups (sm_90a), as in forward.cu, with wgmma and TMA [Shah et al. 2024].
// Layout: a block takes 128 queries, of one head after the other (wgmma_schedule.h). One warp copies tiles of keys and
// values into a ring in order of use, and a head's queries while the previous head is computed; two warpgroups own 64
// queries each, with scores and sums in registers. The softmax of a tile overlaps the GEMM with the previous tile's
// values; the end of a head overlaps the first scores of the next head. Compute bound. Deterministic: the sums of a row
// are over its keys in order. No GPU has run it yet.
#include "cuda/attention/softmax.h"
#include "cuda/attention/wgmma.h"
#include "cuda/attention/wgmma_schedule.h"
#include "cuda/attention/wgmma_tiles.h"

namespace athanor::cuda::attention {
namespace {

constexpr int N = 128;     // keys per tile
constexpr int kSlots = 4;  // two for keys, two for values; more do not fit with D = 128

struct Maps {
  CUtensorMap q, k, v, y;
};

template <class T, int D>
struct Smem {            // dynamic shared memory
  T rows[2][kRows * D];  // queries, later y; heads alternate between the two
  T slots[kSlots][N * D];
};

#if PTX_SM90A
struct Shared {
  Sight<kRows> sight;
  Ring<kSlots> ring;
  Heads<2> heads;
};

struct Place {
  int head, end;  // the block's query heads: [head, end)
  int first;      // first query of the block
  int start;      // the first key that its queries see; kNone: none
};

// ---- the producer warp

template <class T, int D>
__device__ __forceinline__ void produce(Smem<T, D>& smem, Shared& shared, const Maps& maps, const Place& at,
                                        int group) {
  if (at.start == kNone) return shared.heads.fill_none(at.head, at.end);
  Ring<kSlots>& ring = shared.ring;
  PipelineState<kSlots> pipe;
  PipelineState<2> own;
  for (int head = at.head; head < at.end; ++head) {
    shared.heads.fill(own, [&](int place) {
      copy_tile<kRows, D>(smem.rows[place], maps.q, &shared.heads.full[place], head * D, at.first);
    });
    const auto push = [&](const CUtensorMap& map, int row, int next) {
      ring.fill(pipe, next,
                [&](int slot) { copy_tile<N, D>(smem.slots[slot], map, &ring.full[slot], head / group * D, row); });
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
}

// ---- consumers

// One warpgroup. It begins the scores of a head before it ends the previous head, so that tensor cores need not wait.
template <class T, int D>
struct Consumer {
  Smem<T, D>& smem;
  Shared& shared;
  const Place& at;
  float scale;  // times log2(e)
  PipelineState<kSlots> pipe = {};
  PipelineState<2> heads = {};
  int place = 0, keys = 0;  // place of the head and slot of the keys whose scores are in s, or in flight
  const T* queries = nullptr;
  Softmax<1> softmax = {};
  Accumulators<1, D> o = {};
  Accumulators<1, N> s = {};
  uint32_t weights[N / 16][4] = {};
  uint32_t amax = 0;  // amax of y so far, as float bits, if it is wanted

  __device__ __forceinline__ T* rows(int of) { return smem.rows[of] + group_id() * kGroupRows * kBoxColumns; }

  __device__ __forceinline__ void begin_scores() {
    keys = shared.ring.wait(pipe);
    wgmma_rows<D, kRows, N>(s, queries, smem.slots[keys]);
  }
  __device__ __forceinline__ void begin_head() {
    place = shared.heads.wait(heads), queries = rows(place);
    begin_scores();
  }
  // Converts the scores in s to weights. shrink: factor for o.
  __device__ __forceinline__ void weigh(int start, float (&shrink)[1][2]) {
    const Seen* seen = shared.sight.seen + warp_id() * 16;
    if (!all_see<16>(seen, start, start + N)) hide<1, N>(s, seen, start, -INFINITY);
    softmax.template add<N>(s, scale, shrink);
  }
  __device__ __forceinline__ void begin_sums(int values) { wgmma_columns<D, N>(o, weights, smem.slots[values]); }
  // Computes a head that has begun, except for the GEMM with its last values. Returns the slot of these values.
  __device__ __forceinline__ int attend() {
    auto& ring = shared.ring;
    float shrink[1][2];
    int start = at.start, next = ring.next[keys];
    ptx::wgmma_wait<0>(s);
    ring.release(keys);
    weigh(start, shrink);
    pack_weights<T, N>(weights, s);
    while (next != kNone) {
      begin_scores();
      const int values = ring.wait(pipe);
      begin_sums(values);
      ptx::wgmma_wait<1>(s);
      start = next, next = ring.next[keys];
      ring.release(keys);
      weigh(start, shrink);
      ptx::wgmma_wait_after(fminf(softmax.sum[0][0], softmax.sum[0][1]));
      ptx::wgmma_wait<0>(o, weights);
      ring.release(values);
      multiply_by_row<1, D>(o, shrink);
      pack_weights<T, N>(weights, s);
    }
    const int values = ring.wait(pipe);
    if (start + N > shared.sight.last) {
      clear_rows<N, D>(smem.slots[values], shared.sight.last - start);
      publish_rows();
    }
    return values;
  }
};

template <class T, int D>
__device__ __forceinline__ void attend_group(Smem<T, D>& smem, Shared& shared, const Forward<T>& a, const Place& at) {
  Consumer<T, D> c{smem, shared, at, a.in.scale * kLog2e};
  const auto end_head = [&](int head, int place) {
    float factor[1][2];
    finish<1>(factor, c.softmax, a, at.first + warp_id() * 16, head);
    if (a.amax) add_amax<1, D>(c.amax, c.o, factor);
    write_rows<D>(c.rows(place), c.o, factor);
    shared.heads.publish(place);
  };
  if (at.start == kNone) {
    for (int head = at.head; head < at.end; ++head) end_head(head, shared.heads.wait(c.heads));
    return;
  }
  c.begin_head();
  int head = at.head;
  for (;; ++head) {
    const int values = c.attend(), place = c.place;
    // Each branch has its own GEMM and wait: if the branches joined before them, ptxas would serialize the GEMMs.
    if (head + 1 == at.end) {
      c.begin_sums(values);
      ptx::wgmma_wait<0>(c.o, c.weights);
      break;
    }
    c.begin_sums(values);
    c.begin_head();
    ptx::wgmma_wait<1>(c.o, c.weights);
    shared.ring.release(values);
    end_head(head, place);
    for_elements<1, D>(c.o, [](float& x, int, int, int) { x = 0; });
    c.softmax = {};
  }
  end_head(head, c.place);
  if (a.amax) raise_by_warp<T>(a.amax, c.amax);
}
#endif

template <class T, int D>
__global__ void __launch_bounds__(kImageThreads, 1)
    attend_wgmma(Forward<T> a, const __grid_constant__ Maps maps, const __grid_constant__ Schedule schedule) {
#if PTX_SM90A
  SHARED(Shared, shared);
  DYN_SMEM(raw);
  auto& smem = *reinterpret_cast<Smem<T, D>*>(raw);
  if (threadIdx.x == 0) {
    shared.ring.init(kConsumers / 32);
    shared.heads.init();
    ptx::fence_mbar_init();
  }
  ptx::wait_for_earlier_kernels();
  // Longest work first: later queries see more keys.
  const Schedule::Run run = schedule.run(static_cast<int>(blockIdx.x));
  Place at{run.head, run.end, (schedule.tiles - 1 - run.tile) * kRows, kNone};
  look<Side::kQueries>(shared.sight, a.in.spans, at.first);  // look() contains the barrier that init() needs
  at.start = next_seen<kRows>(shared.sight.seen, 0);
  if (threadIdx.x >= kConsumers) {
    ptx::registers_decrease<kProducerRegisters>();
    if (warp_id() == kProducer) produce(smem, shared, maps, at, a.in.group);
    if (warp_id() == kStorer)
      shared.heads.store_all(at.head, at.end,
                             [&](int place, int head) { store_tile<D>(maps.y, smem.rows[place], head * D, at.first); });
  } else {
    ptx::registers_increase<kConsumerRegisters>();
    attend_group(smem, shared, a, at);
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
                  tensor_map<T>(encode, {a.y, queries, width, width, kRows})};
  const Schedule work = schedule(queries, kRows, in.heads);
  constexpr size_t kBytes = sizeof(Smem<T, D>);
  CUDA_CHECK(launch(attend_wgmma<T, D>, {dim3(grid_size(work.blocks)), dim3(kThreads), kBytes, stream}, a, maps, work));
}
}  // namespace

template <class T>
bool warpgroups_take(const Forward<T>& a) {
  const Inputs<T>& in = a.in;
  if (!in.vectors || in.scale <= 0 || in.softcap > 0 || in.spans.sparse.group > 0 || in.spans.keys == 0) return false;
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
