// Mixtures of experts: the router, the order of rows, and sums of a token's rows. Layout: the router has one warp per
// token, whose lanes take experts 32 apart; sums use packs of 16 bytes. Deterministic: the order of sums depends on
// shapes alone, and the sort of rows is stable. Plain kernels, not tuned and not timed on a GPU yet.
#include <algorithm>
#include <limits>

#include "cuda/index_sort.h"
#include "cuda/kernels.h"
#include "cuda/pack.h"
#include "cuda/ptx/ptx.h"
#include "cuda/reduce.h"
#include "cuda/warps.h"

namespace athanor::cuda {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// ---- router

struct RowSums {
  float most, sum;  // maximum logit, and the sum of exp(logit - most)
  __device__ __forceinline__ float probability(float logit) const { return expf(logit - most) / sum; }
  __device__ __forceinline__ float log_sum() const { return most + logf(sum); }
};
__device__ __forceinline__ RowSums row_sums(const float* logits, int experts) {
  RowSums s{-kInf, 0};
  for (int i = lane_number(); i < experts; i += 32) s.most = fmaxf(s.most, logits[i]);
  s.most = warp_reduce(s.most, Max{});
  for (int i = lane_number(); i < experts; i += 32) s.sum += expf(logits[i] - s.most);
  s.sum = warp_reduce(s.sum, Plus{});
  return s;
}

// Sort key of an expert: by logit, NaN below all, then by expert number, where the lower number has the larger key.
__device__ __forceinline__ unsigned long long order_of(float logit, int expert) {
  const float x = logit + 0.f;  // -0 is 0
  const uint32_t bits = __float_as_uint(x), flipped = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  const uint32_t high = x == x ? flipped : 0u;
  return static_cast<unsigned long long>(high) << 32 | ~static_cast<uint32_t>(expert);
}

__device__ __forceinline__ float sigmoid_of(float x) { return 1 / (1 + expf(-x)); }

struct Routed {
  float* weights;
  int* experts;
  const float *logits, *bias;  // bias: null for none
  int tokens, count, chosen;   // count: number of experts
  int groups, chosen_groups;
  float factor;
  bool sigmoids, normalize, by_logit, by_largest;
};

// The largest key below `last` among value_of(i) for i in [begin, end), over the warp; 0: none.
template <class Value>
__device__ __forceinline__ unsigned long long next_largest(int begin, int end, unsigned long long last,
                                                           const Value& value_of) {
  unsigned long long best = 0;
  for (int i = begin + lane_number(); i < end; i += 32) {
    const unsigned long long order = order_of(value_of(i), i);
    if (order < last && order > best) best = order;
  }
  return warp_reduce(best, Max{});
}
__device__ __forceinline__ int number_in(unsigned long long order) {
  return static_cast<int>(~static_cast<uint32_t>(order));
}

// kept[g] = whether group g is chosen; best: scratch [groups]. Both arrays belong to this warp.
template <class Value>
__device__ __forceinline__ void choose_groups(int* kept, float* best, const Routed& a, const Value& value_of) {
  const int each = a.count / a.groups;
  for (int g = 0; g < a.groups; ++g) {
    const unsigned long long first = next_largest(g * each, (g + 1) * each, ~0ull, value_of);
    const unsigned long long second = next_largest(g * each, (g + 1) * each, first, value_of);
    if (lane_number() == 0) {
      best[g] = value_of(number_in(first)) + (a.by_largest ? 0.f : value_of(number_in(second)));
      kept[g] = 0;
    }
  }
  __syncwarp();
  unsigned long long last = ~0ull;
  for (int j = 0; j < a.chosen_groups; ++j) {
    last = next_largest(0, a.groups, last, [&](int g) { return best[g]; });
    if (lane_number() == 0) kept[number_in(last)] = 1;
  }
  __syncwarp();
}

__global__ void __launch_bounds__(kThreads) route_forward(Routed a) {
  ptx::wait_for_earlier_kernels();
  SHARED(float, best_groups, [kWarps * RouterRule::kMaxGroups]);
  SHARED(int, kept_groups, [kWarps * RouterRule::kMaxGroups]);
  const int token = warp_number();
  if (token >= a.tokens) return;
  const float* logits = a.logits + static_cast<int64_t>(token) * a.count;
  float* weights = a.weights + static_cast<int64_t>(token) * a.chosen;
  const RowSums sums = row_sums(logits, a.count);
  const auto score_of = [&](int i) { return a.sigmoids ? sigmoid_of(logits[i]) : sums.probability(logits[i]); };
  const auto value_of = [&](int i) { return a.by_logit ? logits[i] : score_of(i) + (a.bias ? a.bias[i] : 0.f); };
  const int own = static_cast<int>(threadIdx.x) / 32 * static_cast<int>(RouterRule::kMaxGroups);
  int* kept = kept_groups + own;
  if (a.groups > 1) choose_groups(kept, best_groups + own, a, value_of);
  const int each = a.count / a.groups;
  unsigned long long last = ~0ull;
  float all = RouterRule::kSumFloor;
  for (int j = 0; j < a.chosen; ++j) {
    unsigned long long best = 0;
    for (int i = lane_number(); i < a.count; i += 32) {
      if (a.groups > 1 && !kept[i / each]) continue;
      const unsigned long long order = order_of(value_of(i), i);
      if (order < last && order > best) best = order;
    }
    last = best = warp_reduce(best, Max{});
    const int expert = number_in(best);
    const float p = score_of(expert);
    all += p;
    if (lane_number() == 0) {
      a.experts[static_cast<int64_t>(token) * a.chosen + j] = expert;
      weights[j] = p;
    }
  }
  if (lane_number() != 0) return;
  for (int j = 0; j < a.chosen; ++j) {
    if (a.normalize) weights[j] /= all;
    if (a.factor != 1) weights[j] *= a.factor;
  }
}

struct Dropped {
  int* kept;
  const float* weights;
  SortedIndices by_expert;
  int count, slots, experts, capacity;  // count: number of choices; slots: choices per sequence
};

// One thread per choice, in order of experts. The choices of one expert are in token order, so those of one sequence
// are adjacent; the thread counts the choices that the expert prefers to the thread's own.
__global__ void __launch_bounds__(kFlatThreads) drop_choices(Dropped a) {
  ptx::wait_for_earlier_kernels();
  const int row = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (row >= a.count) return;
  const int *slots = a.by_expert.row, *experts = a.by_expert.index;
  const int slot = slots[row], expert = experts[row], first = slot / a.slots * a.slots;
  const auto first_row_from = [&](int least) {  // the expert's first row whose slot is `least` or later
    int begin = 0, end = a.count;
    while (begin < end) {
      const int middle = (begin + end) / 2;
      if (experts[middle] < expert || (experts[middle] == expert && slots[middle] < least))
        begin = middle + 1;
      else
        end = middle;
    }
    return begin;
  };
  const int begin = first_row_from(first), end = first_row_from(first + a.slots);
  const unsigned long long own = order_of(a.weights[slot], slot);
  int ahead = 0;
  for (int i = begin; i < end && ahead < a.capacity; ++i) ahead += order_of(a.weights[slots[i]], slots[i]) > own;
  a.kept[slot] = ahead < a.capacity ? expert : a.experts;
}

// counts [sequences, E]: rows per expert; one block per sequence. Integers: exact in any order.
template <class Count>
__global__ void __launch_bounds__(kThreads) count_rows(Count* counts, const int* experts, int slots, int count) {
  ptx::wait_for_earlier_kernels();
  DYN_SMEM(smem);
  int* own = reinterpret_cast<int*>(smem);
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) own[i] = 0;
  __syncthreads();
  const int* mine = experts + static_cast<int64_t>(blockIdx.x) * slots;
  for (int i = static_cast<int>(threadIdx.x); i < slots; i += kThreads) atomicAdd(own + mine[i], 1);
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads)
    counts[static_cast<int64_t>(blockIdx.x) * count + i] = own[i];
}

// One block. Counts are integers, so their sum is exact in any order.
__global__ void __launch_bounds__(kThreads) find_loads(float* loads, double* running, const double* counts, int count) {
  ptx::wait_for_earlier_kernels();
  SHARED(double, smem, [32]);
  const int thread = static_cast<int>(threadIdx.x);
  double sum = 0;
  for (int i = thread; i < count; i += kThreads) sum += running[i] += counts[i];
  sum = block_reduce(sum, smem, Plus{});
  for (int i = thread; i < count; i += kThreads) loads[i] = static_cast<float>(running[i] * count / sum);
}

template <class T>
struct RouteGradient {
  T* dlogits;
  float* sums;  // [4, N]: contribution of each token to the statistics
  const int* counts;
  const float *dweights, *logits, *scale;
  const int *experts, *kept;  // kept: null if no choice is dropped
  const float* loads;         // null: the balance loss uses counts
  int tokens, count, chosen, sequence;
  float inv_count, balance, z, share, factor;
  bool sigmoids, normalize;
};

// The sum of a row's sigmoids.
__device__ __forceinline__ float sigmoid_sum(const float* logits, int experts) {
  float sum = 0;
  for (int i = lane_number(); i < experts; i += 32) sum += sigmoid_of(logits[i]);
  return warp_reduce(sum, Plus{});
}

template <class T>
__global__ void __launch_bounds__(kThreads) route_backward(RouteGradient<T> a) {
  ptx::wait_for_earlier_kernels();
  const int token = warp_number();
  if (token >= a.tokens) return;
  const int64_t first = static_cast<int64_t>(token) * a.chosen;
  const float* logits = a.logits + static_cast<int64_t>(token) * a.count;
  const int* counts = a.counts + static_cast<int64_t>(token / a.sequence) * a.count;
  const auto count_of = [&](int i) { return a.loads ? a.loads[i] : static_cast<float>(counts[i]); };
  const RowSums row = row_sums(logits, a.count);
  const float scale = *a.scale * a.inv_count, lse = row.log_sum();
  const float all = a.sigmoids ? sigmoid_sum(logits, a.count) : 1.f;
  const auto score_of = [&](int i) { return a.sigmoids ? sigmoid_of(logits[i]) : row.probability(logits[i]); };
  const auto is_dropped = [&](int j) { return a.kept && a.kept[first + j] == a.count; };
  const auto dweight = [&](int j) { return is_dropped(j) ? 0.f : a.dweights[first + j]; };
  float sum = 1, weighted = 0;
  if (a.normalize) {
    sum = RouterRule::kSumFloor;
    for (int j = 0; j < a.chosen; ++j) {
      const float p = score_of(a.experts[first + j]);
      sum += p;
      weighted += p * dweight(j);
    }
    weighted /= sum;
  }
  float entropy = 0, balance = 0;
  for (int i = lane_number(); i < a.count; i += 32) {
    const float p = a.sigmoids ? score_of(i) / all : row.probability(logits[i]);
    if (!a.sigmoids) entropy += p * (lse - logits[i]);
    if (a.sigmoids && p > 0) entropy -= p * logf(p);
    balance += p * count_of(i);
  }
  entropy = warp_reduce(entropy, Plus{});
  balance = warp_reduce(balance, Plus{});
  if (lane_number() == 0) {
    a.sums[token] = entropy;
    a.sums[a.tokens + token] = a.share * balance;
    a.sums[2 * a.tokens + token] = lse * lse;
    float dropped = 0;
    for (int j = 0; j < a.chosen; ++j) dropped += is_dropped(j) ? 1.f : 0.f;
    a.sums[3 * a.tokens + token] = dropped;
  }
  const float around = a.sigmoids ? balance : 0.f;
  const auto gradient = [&](int i) {  // with respect to the score of expert i
    float dp = scale * a.balance * a.share * (count_of(i) - around) / all;
    for (int j = 0; j < a.chosen; ++j)
      if (a.experts[first + j] == i) dp += a.factor * ((dweight(j) - weighted) / sum);
    return dp;
  };
  float inner = 0;
  for (int i = lane_number(); i < a.count && !a.sigmoids; i += 32) inner += row.probability(logits[i]) * gradient(i);
  inner = warp_reduce(inner, Plus{});
  const float z = scale * a.z * 2 * lse;
  for (int i = lane_number(); i < a.count; i += 32) {
    const float p = row.probability(logits[i]), s = score_of(i);
    a.dlogits[static_cast<int64_t>(token) * a.count + i] =
        from_float<T>(a.sigmoids ? gradient(i) * s * (1 - s) + z * p : p * (gradient(i) + (z - inner)));
  }
}

// One block per sum, and one for the counts of all sequences.
__global__ void __launch_bounds__(kThreads)
    add_statistics(double* statistics, const int* counts, const float* sums, int tokens, int sequences, int count) {
  ptx::wait_for_earlier_kernels();
  const int which = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  if (which == RouterStatistics::kSums) {
    for (int i = thread; i < count; i += kThreads) {
      int64_t all = 0;
      for (int s = 0; s < sequences; ++s) all += counts[static_cast<int64_t>(s) * count + i];
      statistics[i] += static_cast<double>(all);
    }
    return;
  }
  SHARED(double, smem, [32]);
  double sum = 0;
  for (int t = thread; t < tokens; t += kThreads) sum += static_cast<double>(sums[which * tokens + t]);
  sum = block_reduce(sum, smem, Plus{});
  if (thread == 0) statistics[count + which] += sum;
}

// Adds only the counts of all sequences.
__global__ void __launch_bounds__(kThreads) add_counts(double* to, const int* counts, int sequences, int count) {
  ptx::wait_for_earlier_kernels();
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    int64_t all = 0;
    for (int s = 0; s < sequences; ++s) all += counts[static_cast<int64_t>(s) * count + i];
    to[i] += static_cast<double>(all);
  }
}

// One block per layer. Counts are integers, so their sum is exact in any order.
__global__ void __launch_bounds__(kThreads)
    step_bias(float* bias, double* counts, const StepState* state, int count, float rate) {
  ptx::wait_for_earlier_kernels();
  SHARED(double, smem, [32]);
  const int thread = static_cast<int>(threadIdx.x);
  bias += static_cast<int64_t>(blockIdx.x) * count;
  counts += static_cast<int64_t>(blockIdx.x) * count;
  double sum = 0;
  for (int i = thread; i < count; i += kThreads) sum += counts[i];
  sum = block_reduce(sum, smem, Plus{});
  for (int i = thread; i < count; i += kThreads) {
    const double below = sum - counts[i] * count;
    if (!state->skip && below != 0) bias[i] += below > 0 ? rate : -rate;
    counts[i] = 0;
  }
}

// ---- order of rows

struct Sorted {
  int *offsets, *tokens, *slots, *rows;
  SortedIndices by_expert;
  int count, chosen, experts;  // count: number of rows; dropped choices are sorted as expert number `experts`
};

__global__ void __launch_bounds__(kFlatThreads) write_order(Sorted a) {
  ptx::wait_for_earlier_kernels();
  const int row = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (row >= a.count) return;
  const int slot = a.by_expert.row[row], expert = a.by_expert.index[row];
  a.slots[row] = slot;
  a.tokens[row] = slot / a.chosen;
  a.rows[slot] = expert < a.experts ? row : -1;
  const int before = row > 0 ? a.by_expert.index[row - 1] : -1;
  for (int e = before + 1; e <= expert; ++e) a.offsets[e] = row;
  if (row + 1 < a.count) return;
  for (int e = expert + 1; e <= a.experts; ++e) a.offsets[e] = a.count;
}

// ---- rows exchanged with other ranks

struct Sent {
  int *tokens, *choices, *slots, *counts;
  const int *offsets, *sorted;
  int all, capacity, experts, own, chosen, rows;  // all: number of slots; rows: those of `sorted`
  double *least, *loss;                           // null for none
};

// Row `row` of SortByExpert has no slot if it overflows. One thread raises `least`.
__device__ void mark_overflow(const Sent& a, int row) {
  int most = 0;  // rows of a rank
  for (int first = 0; first < a.experts; first += a.own) {
    const int begin = a.offsets[first], end = a.offsets[first + a.own];
    if (row >= begin + a.capacity && row < end) a.slots[a.sorted[row]] = -1;
    most = max(most, end - begin);
  }
  if (row != 0) return;
  if (most > a.capacity)
    *a.least = fmax(*a.least, static_cast<double>(most) * (a.experts / a.own) / static_cast<double>(a.rows));
  if (a.loss && *a.least > 0) *a.loss = static_cast<double>(kInf);
}

// One thread per slot; threads also write the counts, and the slots of dropped choices.
__global__ void __launch_bounds__(kFlatThreads) send_slots(Sent a) {
  ptx::wait_for_earlier_kernels();
  const int slot = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (slot < a.experts) {
    const int end = a.offsets[slot / a.own * a.own] + a.capacity;  // end of the rows that have slots
    a.counts[slot] = min(a.offsets[slot + 1], end) - min(a.offsets[slot], end);
  }
  if (slot < a.rows && slot >= a.offsets[a.experts]) a.slots[a.sorted[slot]] = -1;
  if (a.least) mark_overflow(a, slot);
  if (slot >= a.all) return;
  const int rank = slot / a.capacity, row = a.offsets[rank * a.own] + slot % a.capacity;
  const bool used = row < a.offsets[(rank + 1) * a.own];
  const int choice = used ? a.sorted[row] : 0;
  a.tokens[slot] = choice / a.chosen;
  a.choices[slot] = choice;
  if (used) a.slots[choice] = slot;
}

struct Received {
  int *offsets, *slots, *rows;
  const int* counts;  // [ranks, experts], from this rank's first expert on
  int all, capacity, experts, own, ranks;
};

// One thread per slot; each reads all counts, which are few.
__global__ void __launch_bounds__(kFlatThreads) receive_slots(Received a) {
  ptx::wait_for_earlier_kernels();
  const int slot = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (slot >= a.all) return;
  const int rank = slot / a.capacity;
  int left = slot % a.capacity;  // position among the rows of its rank, minus the rows of experts before e
  int before = 0, row = -1;      // before: rows of experts before e on all ranks
  for (int e = 0; e < a.own; ++e) {
    if (slot == 0) a.offsets[e] = before;
    int of_earlier = 0;
    for (int r = 0; r < a.ranks; ++r) {
      const int count = a.counts[r * a.experts + e];
      if (r == rank && row < 0) {
        if (left < count) row = before + of_earlier + left;
        left -= count;
      }
      of_earlier += count;
    }
    before += of_earlier;
  }
  if (slot == 0) a.offsets[a.own] = before;
  if (row < 0) {  // unused slots come after all rows and the unused slots of earlier ranks
    row = before + left;
    for (int r = 0; r < rank; ++r) {
      row += a.capacity;
      for (int e = 0; e < a.own; ++e) row -= a.counts[r * a.experts + e];
    }
  }
  a.slots[row] = slot;
  a.rows[slot] = row;
}

// ---- sums of a token's rows

template <class T>
struct SummedRows {
  T* y;
  const T *x, *add;  // add: null for none
  const int* rows;
  unsigned row_packs, packs;
  int chosen;
};

template <class T, int E>
__global__ void __launch_bounds__(kFlatThreads) sum_rows(SummedRows<T> a) {
  ptx::wait_for_earlier_kernels();
  const unsigned at = first_pack<1>();
  if (at >= a.packs) return;
  const unsigned token = at / a.row_packs, column = at % a.row_packs;
  float sum[E] = {};
  for (int j = 0; j < a.chosen; ++j) {
    const int64_t row = a.rows[static_cast<int64_t>(token) * a.chosen + j];
    if (row < 0) continue;
    const Pack<T, E> x = load_pack<E>(a.x + (row * a.row_packs + column) * E);
#pragma unroll
    for (int i = 0; i < E; ++i) sum[i] += x[i];
  }
  if (a.add) {
    const Pack<T, E> add = load_pack<E>(a.add + static_cast<size_t>(at) * E);
#pragma unroll
    for (int i = 0; i < E; ++i) sum[i] += add[i];
  }
  store_values(a.y + static_cast<size_t>(at) * E, sum);
}

}  // namespace

// ---- launchers

void run(const RouteFwd& op, void*, cudaStream_t stream) {
  if (op.logits.rows() == 0) return;
  const Routed a{data<float>(op.weights),
                 data<int>(op.experts),
                 data<float>(op.logits),
                 data<float>(op.bias),
                 static_cast<int>(op.logits.rows()),
                 checked_columns(op.kName, op.logits),
                 checked_columns(op.kName, op.weights),
                 static_cast<int>(op.rule.groups),
                 static_cast<int>(op.rule.chosen_groups),
                 op.rule.factor,
                 op.rule.score == RouterScore::sigmoid,
                 op.rule.normalize,
                 op.selects_by_logit(),
                 op.rule.by_largest};
  CUDA_CHECK(launch(route_forward, warps(a.tokens, stream), a));
}

void run(const DropChoices& op, void* scratch, cudaStream_t stream) {
  const int64_t count = op.experts.numel();
  if (count == 0) return;
  CHECK(count < int64_t{1} << 31, op.kName, ": ", count, " choices are beyond 32-bit indices");
  const SortedIndices sorted =
      sort_indices({.of_row = data<int>(op.experts), .rows = count, .limit = op.expert_count}, scratch, stream);
  const Dropped a{data<int>(op.kept),
                  data<float>(op.weights),
                  sorted,
                  static_cast<int>(count),
                  static_cast<int>(op.sequence * op.experts.cols()),
                  static_cast<int>(op.expert_count),
                  static_cast<int>(std::min(op.capacity, count))};
  CUDA_CHECK(launch(drop_choices, flat_launch<1>(op.kName, count, stream), a));
}

void run(const CountExperts& op, void*, cudaStream_t stream) {
  const int64_t slots = op.experts.numel();
  CHECK(slots < int64_t{1} << 31, op.kName, ": ", slots, " choices are beyond 32-bit indices");
  const auto experts = static_cast<int>(op.counts.numel());
  const LaunchConfig one{dim3(1), dim3(kThreads), static_cast<size_t>(experts) * sizeof(int), stream};
  CUDA_CHECK(launch(count_rows<double>, one, data<double>(op.counts), data<int>(op.experts), static_cast<int>(slots),
                    experts));
}

void run(const ExpertLoads& op, void*, cudaStream_t stream) {
  CUDA_CHECK(launch(find_loads, {dim3(1), dim3(kThreads), 0, stream}, data<float>(op.loads), data<double>(op.running),
                    data<double>(op.counts), static_cast<int>(op.counts.numel())));
}

void run(const RouteBwd& op, void* scratch, cudaStream_t stream) {
  if (op.logits.rows() == 0) return;
  const int tokens = static_cast<int>(op.logits.rows()), experts = checked_columns(op.kName, op.logits);
  const int chosen = checked_columns(op.kName, op.dweights), sequences = static_cast<int>(op.sequences());
  int* counts = static_cast<int*>(scratch);
  float* sums = static_cast<float*>(scratch) + static_cast<int64_t>(sequences) * experts;
  const auto sequence = static_cast<int>(op.sequence);
  const LaunchConfig counting{dim3(grid_size(sequences)), dim3(kThreads), static_cast<size_t>(experts) * sizeof(int),
                              stream};
  CUDA_CHECK(launch(count_rows<int>, counting, counts, data<int>(op.experts), sequence * chosen, experts));
  by_type(op.dlogits.dtype, [&]<class T>() {
    const RouteGradient<T> a{data<T>(op.dlogits),
                             sums,
                             counts,
                             data<float>(op.dweights),
                             data<float>(op.logits),
                             data<float>(op.scale),
                             data<int>(op.experts),
                             data<int>(op.kept),
                             data<float>(op.loads),
                             tokens,
                             experts,
                             chosen,
                             sequence,
                             op.inv_count,
                             op.balance,
                             op.z,
                             op.load_of_choice(),
                             op.rule.factor,
                             op.rule.score == RouterScore::sigmoid,
                             op.rule.normalize};
    CUDA_CHECK(launch(route_backward<T>, warps(tokens, stream), a));
  });
  if (op.counts)
    CUDA_CHECK(
        launch(add_counts, {dim3(1), dim3(kThreads), 0, stream}, data<double>(op.counts), counts, sequences, experts));
  if (!op.statistics) return;
  const LaunchConfig adding{dim3(RouterStatistics::kSums + 1), dim3(kThreads), 0, stream};
  CUDA_CHECK(launch(add_statistics, adding, data<double>(op.statistics), counts, sums, tokens, sequences, experts));
}

void run(const StepRouterBias& op, void*, cudaStream_t stream) {
  if (op.bias.rows() == 0) return;
  const LaunchConfig layers{dim3(grid_size(op.bias.rows())), dim3(kThreads), 0, stream};
  CUDA_CHECK(launch(step_bias, layers, data<float>(op.bias), data<double>(op.counts), data<StepState>(op.state),
                    checked_columns(op.kName, op.bias), op.rate));
}

void run(const SortByExpert& op, void* scratch, cudaStream_t stream) {
  const int64_t rows = op.experts.numel();
  if (rows == 0) {
    CUDA_CHECK(cudaMemsetAsync(op.offsets.data, 0, op.offsets.bytes(), stream));
    return;
  }
  CHECK(rows < int64_t{1} << 31, op.kName, ": ", rows, " rows are beyond 32-bit indices");
  const SortedIndices sorted =
      sort_indices({.of_row = data<int>(op.experts), .rows = rows, .limit = op.expert_count() + 1}, scratch, stream);
  const Sorted a{data<int>(op.offsets),
                 data<int>(op.tokens),
                 data<int>(op.slots),
                 data<int>(op.rows),
                 sorted,
                 static_cast<int>(rows),
                 checked_columns(op.kName, op.experts),
                 static_cast<int>(op.expert_count())};
  CUDA_CHECK(launch(write_order, flat_launch<1>(op.kName, rows, stream), a));
}

void run(const SendSlots& op, void*, cudaStream_t stream) {
  const int64_t slots = op.tokens.numel(), threads = std::max({slots, op.experts(), op.sorted.numel()});
  CHECK(threads < int64_t{1} << 31, op.kName, ": ", threads, " slots are beyond 32-bit indices");
  if (op.slots.numel() == 0) {
    CUDA_CHECK(cudaMemsetAsync(op.counts.data, 0, op.counts.bytes(), stream));
    return;
  }
  const Sent a{data<int>(op.tokens),
               data<int>(op.choices),
               data<int>(op.slots),
               data<int>(op.counts),
               data<int>(op.offsets),
               data<int>(op.sorted),
               static_cast<int>(slots),
               static_cast<int>(op.capacity()),
               static_cast<int>(op.experts()),
               static_cast<int>(op.experts() / op.ranks),
               checked_columns(op.kName, op.slots),
               static_cast<int>(op.sorted.numel()),
               data<double>(op.least),
               data<double>(op.loss)};
  CUDA_CHECK(launch(send_slots, flat_launch<1>(op.kName, threads, stream), a));
}

void run(const ReceiveSlots& op, void*, cudaStream_t stream) {
  const int64_t slots = op.slots.numel();
  CHECK(slots > 0 && slots < int64_t{1} << 31, op.kName, ": ", slots, " slots; expected some, and 32-bit indices");
  const Received a{data<int>(op.offsets),
                   data<int>(op.slots),
                   data<int>(op.rows),
                   data<int>(op.counts) + op.rank * op.own(),
                   static_cast<int>(slots),
                   static_cast<int>(op.capacity()),
                   checked_columns(op.kName, op.counts),
                   static_cast<int>(op.own()),
                   static_cast<int>(op.ranks())};
  CUDA_CHECK(launch(receive_slots, flat_launch<1>(op.kName, slots, stream), a));
}

void run(const SumRows& op, void*, cudaStream_t stream) {
  const int64_t n = op.y.numel(), columns = op.y.cols();
  if (n == 0) return;
  const auto fits = [&]<class T>() {
    return in_packs<T>(columns) && aligned16(op.y.data, op.x.data, op.add ? op.add.data : op.x.data);
  };
  by_pack(op.y.dtype, fits, [&]<class T, int E>() {
    const SummedRows<T> a{data<T>(op.y),
                          data<T>(op.x),
                          data<T>(op.add),
                          data<int>(op.rows),
                          static_cast<unsigned>(columns / E),
                          static_cast<unsigned>(n / E),
                          checked_columns(op.kName, op.rows)};
    CUDA_CHECK(launch(sum_rows<T, E>, flat_launch<1>(op.kName, n / E, stream), a));
  });
}

}  // namespace athanor::cuda
