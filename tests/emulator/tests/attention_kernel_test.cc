// Causal attention forward, head size 64, by cp.async, ldmatrix and mma.sync: 64 x 64 tiles, four warps, rows of 128
// bytes whose 16-byte chunks are exchanged against bank conflicts.
#include "cuda/ptx/ptx.h"
#include "emulator/tests/support.h"

namespace athanor::cuda::testing {
namespace {

enum Bug { kSound, kNoCopyWait, kSwappedRegisters, kNoBarrierBeforeReuse, kNoBarrierAfterWait };
constexpr int kTile = 64 * 64;

__device__ bf16* chunk(bf16* tile, int row, int c) { return tile + row * 64 + ((c ^ (row & 7)) << 3); }

__device__ void load_tile(bf16* tile, const bf16* from, int first_row, int rows) {
  for (int i = static_cast<int>(threadIdx.x); i < 512; i += static_cast<int>(blockDim.x)) {
    const int row = i / 8, c = i % 8;
    const bool valid = first_row + row < rows;
    ptx::cp_async16(chunk(tile, row, c), from + (valid ? (first_row + row) * 64 + c * 8 : 0), valid);
  }
}
__device__ void fragment_a(uint32_t (&r)[4], bf16* tile, int row, int k) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  ptx::ldmatrix(r, chunk(tile, row + lane % 16, k * 2 + lane / 16));
}
__device__ void fragment_b(uint32_t (&r)[4], bf16* tile, int n, int k) {  // tile is [n][k]
  const int lane = static_cast<int>(threadIdx.x) % 32;
  ptx::ldmatrix(r, chunk(tile, n + lane % 8 + lane / 16 * 8, k * 2 + lane / 8 % 2));
}
__device__ void fragment_b_transposed(uint32_t (&r)[4], bf16* tile, int n, int k) {  // tile is [k][n]
  const int lane = static_cast<int>(threadIdx.x) % 32;
  ptx::ldmatrix<4, true>(r, chunk(tile, k * 16 + lane % 16, n / 8 + lane / 16));
}
__device__ uint32_t pack(float a, float b) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
  uint32_t raw;
  memcpy(&raw, &pair, sizeof raw);
  return raw;
}

struct Rows {  // of one thread: two rows of 64 columns, 16 columns of each
  float out[8][4] = {}, top[2] = {-INFINITY, -INFINITY}, sum[2] = {};
};

// scores [16, 64] of this warp = Q K^T
template <int B>
__device__ void score(float (&s)[8][4], bf16* q, bf16* k, int warp) {
#pragma unroll
  for (int d = 0; d < 4; ++d) {
    uint32_t a[4], b[4];
    fragment_a(a, q, warp * 16, d);
    if constexpr (B == kSwappedRegisters) {
      const uint32_t t = a[1];
      a[1] = a[2];
      a[2] = t;
    }
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      fragment_b(b, k, n * 16, d);
      ptx::mma_bf16(s[2 * n], a, b[0], b[1]);
      ptx::mma_bf16(s[2 * n + 1], a, b[2], b[3]);
    }
  }
}

__device__ void soften(Rows& rows, float (&s)[8][4], int first_row, int first_key, float scale) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = first_row + lane / 4 + 8 * h;
    float top = rows.top[h];
    for (int n = 0; n < 8; ++n) {
      for (int e = 0; e < 2; ++e) {
        float& x = s[n][2 * h + e];
        x = first_key + n * 8 + lane % 4 * 2 + e <= row ? x * scale : -INFINITY;
        top = fmaxf(top, x);
      }
    }
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
    const float shrink = __expf(rows.top[h] - top);
    rows.top[h] = top;
    rows.sum[h] *= shrink;
    for (int n = 0; n < 8; ++n) {
      for (int e = 0; e < 2; ++e) {
        float& x = s[n][2 * h + e];
        x = __expf(x - top);
        rows.sum[h] += x;
        rows.out[n][2 * h + e] *= shrink;
      }
    }
  }
}

__device__ void gather(Rows& rows, const float (&s)[8][4], bf16* v) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const uint32_t a[4] = {pack(s[2 * k][0], s[2 * k][1]), pack(s[2 * k][2], s[2 * k][3]),
                           pack(s[2 * k + 1][0], s[2 * k + 1][1]), pack(s[2 * k + 1][2], s[2 * k + 1][3])};
    uint32_t b[4];
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      fragment_b_transposed(b, v, n * 16, k);
      ptx::mma_bf16(rows.out[2 * n], a, b[0], b[1]);
      ptx::mma_bf16(rows.out[2 * n + 1], a, b[2], b[3]);
    }
  }
}

// q, k, v, out: [heads, T, 64]; a block does 64 rows of a head.
template <int B>
__global__ void __launch_bounds__(128)
    attend(const bf16* q, const bf16* k, const bf16* v, bf16* out, int length, float scale) {
  DYN_SMEM(raw);
  bf16* sq = reinterpret_cast<bf16*>(raw);
  bf16 *sk = sq + kTile, *sv = sk + 2 * kTile;  // two tiles each
  const size_t head = size_t{blockIdx.y} * length * 64;
  const int first = static_cast<int>(blockIdx.x) * 64, warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32, tiles = static_cast<int>(blockIdx.x) + 1;
  load_tile(sq, q + head, first, length);
  load_tile(sk, k + head, 0, length);
  load_tile(sv, v + head, 0, length);
  ptx::cp_async_commit();
  Rows rows;
  for (int j = 0; j < tiles; ++j) {
    if (j + 1 < tiles) {
      load_tile(sk + (j + 1) % 2 * kTile, k + head, (j + 1) * 64, length);
      load_tile(sv + (j + 1) % 2 * kTile, v + head, (j + 1) * 64, length);
    }
    ptx::cp_async_commit();
    ptx::cp_async_wait<B == kNoCopyWait ? 2 : 1>();
    if constexpr (B != kNoBarrierAfterWait) __syncthreads();
    float s[8][4] = {};
    score<B>(s, sq, sk + j % 2 * kTile, warp);
    soften(rows, s, first + warp * 16, j * 64, scale);
    gather(rows, s, sv + j % 2 * kTile);
    if constexpr (B != kNoBarrierBeforeReuse) __syncthreads();
  }
  ptx::cp_async_wait<0>();
  for (int h = 0; h < 2; ++h) {
    const int row = first + warp * 16 + lane / 4 + 8 * h;
    float sum = rows.sum[h];
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    if (row >= length) continue;
    for (int n = 0; n < 8; ++n) {
      st4(out + head + row * 64 + n * 8 + lane % 4 * 2, pack(rows.out[n][2 * h] / sum, rows.out[n][2 * h + 1] / sum));
    }
  }
}

template <int B>
void run_attend(Error& error, int heads, int length) {
  Values values;
  const size_t n = static_cast<size_t>(heads) * length * 64;
  const auto q = values.vector<bf16>(n), k = values.vector<bf16>(n), v = values.vector<bf16>(n);
  DeviceBuffer<bf16> dq(q), dk(k), dv(v), out(n);
  const LaunchConfig config{dim3((length + 63) / 64, heads), dim3(128), 5 * kTile * sizeof(bf16)};
  (void)launch(attend<B>, config, dq.get(), dk.get(), dv.get(), out.get(), length, 0.125f);
  const auto got = out.read();
  std::vector<double> p(length);
  for (int row = 0; row < heads * length; ++row) {
    const int head = row / length * length, i = row % length;
    double sum = 0;
    for (int j = 0; j <= i; ++j) {
      double dot = 0;
      for (int d = 0; d < 64; ++d) dot += double{to_float(q[row * 64 + d])} * to_float(k[(head + j) * 64 + d]);
      sum += p[j] = std::exp(dot * 0.125);
    }
    for (int d = 0; d < 64; ++d) {
      double want = 0;
      for (int j = 0; j <= i; ++j) want += p[j] / sum * to_float(v[(head + j) * 64 + d]);
      error.add(to_float(got[row * 64 + d]), want, 1e-2, 1e-2);
    }
  }
}

TEST(AttentionKernel, CausalForward) {
  expect_sound([](Error& e) { run_attend<kSound>(e, 1, 1); });
  expect_sound([](Error& e) { run_attend<kSound>(e, 2, 77); });
  expect_sound([](Error& e) { run_attend<kSound>(e, 1, 257); }, 2);
}

#ifndef __CUDACC__
using emu::Fault;
const std::set<Fault> kOrder = {Fault::kRace, Fault::kUninitialized, Fault::kInFlight};

TEST(AttentionKernel, SoundOverAHundredSeeds) {
  expect_sound([](Error& e) { run_attend<kSound>(e, 1, 77); }, emu::kChecking ? 100 : 10);
}
TEST(PlantedBug, MissingCopyWait) {
  expect_found(
      kOrder, [](Error& e) { run_attend<kNoCopyWait>(e, 1, 77); }, true);
}
TEST(PlantedBug, SwappedFragmentRegisters) {
  expect_found(
      {Fault::kNone}, [](Error& e) { run_attend<kSwappedRegisters>(e, 1, 77); }, true);
}
TEST(PlantedBug, NoBarrierBeforeReuse) {
  expect_found(
      kOrder, [](Error& e) { run_attend<kNoBarrierBeforeReuse>(e, 1, 257); }, true);
}
TEST(PlantedBug, NoBarrierAfterCopyWait) {
  expect_found(kOrder, [](Error& e) { run_attend<kNoBarrierAfterWait>(e, 1, 77); });
}
#endif
}  // namespace
}  // namespace athanor::cuda::testing
