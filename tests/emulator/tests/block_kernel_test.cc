// Kernels of one block or of independent blocks: barriers, shuffles, votes, atomics, dependent launches, with the bugs
// that these invite.
#include "cuda/ptx/ptx.h"
#include "emulator/tests/support.h"

namespace athanor::cuda::testing {
namespace {

enum Bug {
  kSound,
  kNoBarrier,
  kDivergentBarrier,
  kWrongMask,
  kReadPastEnd,
  kMisaligned,
  kSharedIndex,
  kNoDependencyWait,
  kNoAtomic,
  kNoFence,
  kOneTooFar,
  kEarlyExit,
};

template <int B>
__device__ float block_sum(float v) {
  SHARED(float, part, [32]);
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = (blockDim.x + 31) / 32;
  if constexpr (B == kWrongMask) {
    for (int o = 16; o; o /= 2) {
      if (lane < 16) v += __shfl_xor_sync(0xffffu, v, o);
    }
  } else {
    for (int o = 16; o; o /= 2) v += __shfl_xor_sync(~0u, v, o);
  }
  __syncthreads();  // the previous call may still read
  if (lane == 0) part[warp + (B == kSharedIndex ? 32 : 0)] = v;
  if constexpr (B == kDivergentBarrier) {
    if (warp == 0) __syncthreads();
  } else if constexpr (B != kNoBarrier) {
    __syncthreads();
  }
  float sum = 0;
  for (unsigned i = 0; i < warps; ++i) sum += part[i];
  return sum;
}

__device__ void load_vector(const bf16* p, float (&values)[8]) {
  const uint4 raw = ld16(p);
  const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
  for (int i = 0; i < 8; ++i) values[i] = element<bf16>(words, i);
}

// out = x / rms(x); one block per row, columns a multiple of 8.
template <int B>
__global__ void normalize(const bf16* x, bf16* out, int columns) {
  if constexpr (B != kNoDependencyWait) ptx::griddep_wait();
  const bf16* row = x + size_t{blockIdx.x} * columns;
  const int limit = B == kReadPastEnd ? columns + 8 : columns;
  float sum = 0, v[8];
  for (int c = static_cast<int>(threadIdx.x) * 8; c < limit; c += static_cast<int>(blockDim.x) * 8) {
    load_vector(row + c + (B == kMisaligned ? 1 : 0), v);
    for (const float f : v) sum += f * f;
  }
  const float scale = rsqrtf(block_sum<B>(sum) / static_cast<float>(columns));
  for (int c = static_cast<int>(threadIdx.x) * 8; c < columns; c += static_cast<int>(blockDim.x) * 8) {
    load_vector(row + c, v);
    for (float& f : v) f *= scale;
    store_vector(out + size_t{blockIdx.x} * columns + c, v);
  }
  ptx::griddep_launch();
}

template <int B>
void run_normalize(Error& error, int rows, int columns, bool twice = false) {
  Values values;
  const auto x = values.vector<bf16>(static_cast<size_t>(rows) * columns);
  DeviceBuffer<bf16> in(x), middle(x.size()), out(x.size());
  LaunchConfig config{dim3(rows), dim3(96)};
  if (twice) {  // the second reads what the first writes
    ok(launch(normalize<kSound>, config, in.get(), middle.get(), columns));
    config.programmatic = true;
  }
  (void)launch(normalize<B>, config, twice ? middle.get() : in.get(), out.get(), columns);
  const auto got = out.read();
  for (int r = 0; r < rows; ++r) {
    double sum = 0;
    for (int c = 0; c < columns; ++c) sum += std::pow(to_float(x[r * columns + c]), 2);
    for (int c = 0; c < columns; ++c) {
      error.add(to_float(got[r * columns + c]), to_float(x[r * columns + c]) / std::sqrt(sum / columns), 1e-3, 1e-2);
    }
  }
}

TEST(BlockKernel, NormalizesRows) {
  expect_sound([](Error& e) { run_normalize<kSound>(e, 3, 8); });
  expect_sound([](Error& e) { run_normalize<kSound>(e, 7, 776); });
  if (has_capability(9)) expect_sound([](Error& e) { run_normalize<kSound>(e, 5, 136, true); });
}

// Sum of squares by all blocks; the last one to finish adds up the parts.
template <int B>
__global__ void sum_squares(const float* x, size_t n, float* parts, unsigned* ticket, float* out) {
  SHARED(int, last, [1]);
  const size_t step = size_t{gridDim.x} * blockDim.x;
  float sum = 0;
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; B == kOneTooFar ? i <= n : i < n; i += step) {
    sum += x[i] * x[i];
  }
  sum = block_sum<kSound>(sum);
  if (threadIdx.x == 0) {
    parts[blockIdx.x] = sum;
    if constexpr (B != kNoFence) __threadfence();
    const unsigned finished = B == kNoAtomic ? blockIdx.x : atomicInc(ticket, gridDim.x - 1);
    __threadfence();
    last[0] = finished == gridDim.x - 1;
  }
  __syncthreads();
  if (!last[0]) return;
  sum = 0;
  for (unsigned i = threadIdx.x; i < gridDim.x; i += blockDim.x) sum += parts[i];
  sum = block_sum<kSound>(sum);
  if (threadIdx.x == 0) *out = sum;
}

template <int B>
void run_sum_squares(Error& error, size_t n) {
  Values values;
  const auto x = values.vector<float>(n);
  DeviceBuffer<float> in(x), parts(7), out(1);
  DeviceBuffer<unsigned> ticket(1);
  ticket.fill(0);
  out.fill(0);
  (void)launch(sum_squares<B>, {dim3(7), dim3(64)}, in.get(), n, parts.get(), ticket.get(), out.get());
  double want = 0;
  for (const float v : x) want += double{v} * v;
  error.add(out.read()[0], want, 1e-5, 1e-5);
}

TEST(BlockKernel, LastBlockAddsTheParts) {
  expect_sound([](Error& e) { run_sum_squares<kSound>(e, 3001); }, 20);
}

// A histogram in shared memory, then in global memory: atomics of both; a thread that leaves before a barrier.
template <int B>
__global__ void histogram(const int* x, int n, int* counts) {
  SHARED(int, local, [16]);
  if (B == kEarlyExit && threadIdx.x == blockDim.x - 1) return;
  if (threadIdx.x < 16) local[threadIdx.x] = 0;
  __syncthreads();
  for (unsigned i = threadIdx.x; i < static_cast<unsigned>(n); i += blockDim.x) {
    if constexpr (B == kNoAtomic) {
      local[x[i]] += 1;
    } else {
      atomicAdd(&local[x[i]], 1);
    }
  }
  __syncthreads();
  if (threadIdx.x < 16) atomicAdd(&counts[threadIdx.x], local[threadIdx.x]);
}

template <int B>
void run_histogram(Error& error) {
  std::vector<int> x(500), want(16);
  for (size_t i = 0; i < x.size(); ++i) ++want[x[i] = static_cast<int>(i * i % 16)];
  DeviceBuffer<int> in(x), counts(16);
  counts.fill(0);
  (void)launch(histogram<B>, {dim3(1), dim3(64)}, in.get(), 500, counts.get());
  const auto got = counts.read();
  for (int i = 0; i < 16; ++i) error.add(got[i], want[i], 1e-9, 0);
}

TEST(BlockKernel, CountsWithAtomics) {
  expect_sound([](Error& e) { run_histogram<kSound>(e); });
}

// Shuffles, votes, matches, reductions and bit intrinsics, one row of results per thread.
constexpr int kCollectives = 10;
__global__ void collectives(int* out) {
  const int t = static_cast<int>(threadIdx.x), l = t % 32;
  const unsigned all = ~0u;
  int* o = out + t * kCollectives;
  o[0] = __shfl_sync(all, l * l, l + 3);
  o[1] = __shfl_up_sync(all, l, 5);
  o[2] = static_cast<int>(__ballot_sync(all, l % 3 == 0));
  o[3] = __any_sync(all, l == 9) + 2 * __all_sync(all, l < 31);
  o[4] = __popc(t);
  o[5] = l < 16 ? __shfl_xor_sync(0xffffu, l, 1) : __shfl_xor_sync(0xffff0000u, l, 2);
  o[6] = static_cast<int>(__match_any_sync(all, l % 7));
  o[7] = __reduce_min_sync(all, l - 40);
  o[8] = static_cast<int>(__byte_perm(0x33221100u, 0x77665544u, 0x7250u) ^
                          __vmaxu2(0x00058000u + static_cast<unsigned>(t), 0x80000007u));
  o[9] = static_cast<int>(static_cast<float>(__nv_fp8_e4m3(static_cast<float>(t) * 1.1f)) * 1024.f);
}

int expected_collective(int t, int i) {
  const int l = t % 32;
  unsigned thirds = 0, sevenths = 0;
  for (int k = 0; k < 32; ++k) {
    if (k % 3 == 0) thirds |= 1u << k;
    if (k % 7 == l % 7) sevenths |= 1u << k;
  }
  const int square = (l + 3) % 32;
  const int fp8 = static_cast<int>(static_cast<float>(__nv_fp8_e4m3(static_cast<float>(t) * 1.1f)) * 1024.f);
  const int expected[kCollectives] = {square * square,
                                      l < 5 ? l : l - 5,
                                      static_cast<int>(thirds),
                                      1,
                                      __builtin_popcount(t),
                                      l < 16 ? l ^ 1 : l ^ 2,
                                      static_cast<int>(sevenths),
                                      -40,
                                      0x77225500 ^ static_cast<int>(0x80008000u + static_cast<unsigned>(t)),
                                      fp8};
  return expected[i];
}

TEST(BlockKernel, Collectives) {
  expect_sound([](Error& e) {
    DeviceBuffer<int> out(64 * kCollectives);
    ok(launch(collectives, {dim3(1), dim3(64)}, out.get()));
    const auto got = out.read();
    for (int i = 0; i < 64 * kCollectives; ++i) {
      const int want = expected_collective(i / kCollectives, i % kCollectives);
      EXPECT_EQ(got[i], want) << "thread " << i / kCollectives << " result " << i % kCollectives;
      e.add(got[i], want, 0.5, 0);
    }
  });
}

// Every atomic on every type, all threads on one place.
__global__ void atomics(int* i, unsigned* u, unsigned long long* q, float* f, double* d, __half2* h, bf16* b,
                        float4* v) {
  const int t = static_cast<int>(threadIdx.x);
  atomicAdd(&i[0], t);
  atomicMax(&i[1], t);
  atomicMin(&i[2], -t);
  atomicInc(u, 10u);
  atomicAdd(q, 1ull << 40);
  atomicAdd(f, 0.5f);
  atomicAdd(d, 0.25);
  atomicAdd(h, __floats2half2_rn(1.f, 2.f));
  atomicAdd(b, __float2bfloat16(1.f));
#if PTX_SM90
  atomicAdd(v, make_float4(1, 2, 3, 4));
#endif
}

TEST(BlockKernel, Atomics) {
  expect_sound([](Error& e) {
    DeviceBuffer<int> i(3);
    DeviceBuffer<unsigned> u(1);
    DeviceBuffer<unsigned long long> q(1);
    DeviceBuffer<float> f(1), v(4);
    DeviceBuffer<double> d(1);
    DeviceBuffer<__half> h(2);
    DeviceBuffer<bf16> b(1);
    i.fill(0), u.fill(0), q.fill(0), f.fill(0), v.fill(0), d.fill(0), h.fill(0), b.fill(0);
    ok(launch(atomics, {dim3(1), dim3(64)}, i.get(), u.get(), q.get(), f.get(), d.get(),
              reinterpret_cast<__half2*>(h.get()), b.get(), reinterpret_cast<float4*>(v.get())));
    const auto gi = i.read();
    e.add(gi[0], 2016, 0.1, 0);
    e.add(gi[1], 63, 0.1, 0);
    e.add(gi[2], -63, 0.1, 0);
    e.add(u.read()[0], 64 % 11, 0.1, 0);
    e.add(static_cast<double>(q.read()[0] >> 40), 64, 0.1, 0);
    e.add(f.read()[0], 32, 1e-6, 0);
    e.add(d.read()[0], 16, 1e-6, 0);
    e.add(to_float(h.read()[1]), 128, 1e-6, 0);
    e.add(to_float(b.read()[0]), 64, 1e-6, 0);
    if (has_capability(9)) e.add(v.read()[3], 256, 1e-6, 0);
  });
}

// So many words of static shared memory beside so many bytes of dynamic.
template <int Words>
__global__ void use_both_parts(int* out) {
  SHARED(int, fixed, [Words]);
  DYN_SMEM(raw);
  fixed[Words - 1] = 3;
  raw[0] = 4;
  *out = fixed[Words - 1] + raw[0];
}
template <int Words>
void run_both_parts(Error& error, size_t dynamic) {
  DeviceBuffer<int> out(std::vector<int>(1));
  ok(launch(use_both_parts<Words>, {dim3(1), dim3(1), dynamic}, out.get()));
  error.add(out.read()[0], 7, 0.1, 0);
}

// 48 KiB together without asking; launch() asks beyond 32 of dynamic memory.
TEST(BlockKernel, StaticAndDynamicSharedMemory) {
  expect_sound([](Error& e) { run_both_parts<4096>(e, 32 << 10); });
  expect_sound([](Error& e) { run_both_parts<4097>(e, 48 << 10); });
}

#ifndef __CUDACC__
using emu::Fault;

TEST(BlockKernel, SoundOverAHundredSeeds) {
  const int seeds = emu::kChecking ? 100 : 10;
  expect_sound([](Error& e) { run_normalize<kSound>(e, 2, 136, true); }, seeds);
  expect_sound([](Error& e) { run_sum_squares<kSound>(e, 700); }, seeds);
  expect_sound([](Error& e) { run_histogram<kSound>(e); }, seeds);
}

TEST(PlantedBug, RemovedBarrier) {
  expect_found({Fault::kRace, Fault::kUninitialized}, [](Error& e) { run_normalize<kNoBarrier>(e, 3, 776); });
}
TEST(PlantedBug, ReadPastTheEnd) {
  expect_found(
      {Fault::kBounds}, [](Error& e) { run_normalize<kReadPastEnd>(e, 3, 776); }, true);
}
// Static shared memory is rounded up to whole KiB before dynamic shared memory is added.
TEST(PlantedBug, MoreSharedMemoryThanAskedFor) {
  expect_found(
      {Fault::kConfigure}, [](Error& e) { run_both_parts<4098>(e, 32 << 10); }, true);
}
TEST(PlantedBug, MisalignedVector) {
  expect_found(
      {Fault::kMisaligned}, [](Error& e) { run_normalize<kMisaligned>(e, 3, 776); }, true);
}
TEST(PlantedBug, DivergentBarrier) {
  const std::set<Fault> any = {Fault::kBarrier, Fault::kUninitialized, Fault::kRace, Fault::kDeadlock};
  expect_found(
      any, [](Error& e) { run_normalize<kDivergentBarrier>(e, 3, 776); }, true);
}
TEST(PlantedBug, WrongShuffleMask) {
  expect_found(
      {Fault::kWarp}, [](Error& e) { run_normalize<kWrongMask>(e, 3, 776); }, true);
}
TEST(PlantedBug, SharedIndexPastTheEnd) {
  expect_found({Fault::kBounds}, [](Error& e) { run_normalize<kSharedIndex>(e, 3, 776); });
}
TEST(PlantedBug, MissingDependencyWait) {
  const std::set<Fault> any = {Fault::kRace, Fault::kUninitialized};
  expect_found(any, [](Error& e) { run_normalize<kNoDependencyWait>(e, 5, 136, true); });
}
TEST(PlantedBug, TicketWithoutAtomic) {
  expect_found({Fault::kRace, Fault::kUninitialized}, [](Error& e) { run_sum_squares<kNoAtomic>(e, 3000); });
}
TEST(PlantedBug, TicketWithoutFence) {
  expect_found({Fault::kRace}, [](Error& e) { run_sum_squares<kNoFence>(e, 3000); });
}
TEST(PlantedBug, LoopOneTooFar) {
  expect_found({Fault::kBounds}, [](Error& e) { run_sum_squares<kOneTooFar>(e, 3001); });
}
TEST(PlantedBug, CountersWithoutAtomics) {
  expect_found({Fault::kRace}, [](Error& e) { run_histogram<kNoAtomic>(e); });
}
TEST(PlantedBug, ThreadLeavesBeforeABarrier) {
  expect_found(
      {Fault::kBarrier}, [](Error& e) { run_histogram<kEarlyExit>(e); }, true);
}
#endif
}  // namespace
}  // namespace athanor::cuda::testing
