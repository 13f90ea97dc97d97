// Compares tensor-core instructions with products computed on the host: mma.sync, ldmatrix, and many shapes of wgmma in
// every layout of its operands.
#include "cuda/ptx/ptx.h"
#include "cuda/ptx/ptx_wgmma.h"
#include "emulator/tests/support.h"

namespace athanor::cuda::testing {
namespace {

constexpr int kDepth = 16;

// ---- mma.sync: one warp, A [16, 16], B [8, 16] row by row
// Operands are loaded by 32-bit words: word w of a row holds the elements of the lanes t = w % 4, register half w / 4.
template <class T>
__global__ void multiply_small(const uint32_t* a, const uint32_t* b, float* d) {
  const int lane = static_cast<int>(threadIdx.x), g = lane / 4, t = lane % 4;
  uint32_t ra[4], rb[2];
  for (int r = 0; r < 4; ++r) ra[r] = a[(g + 8 * (r % 2)) * 8 + t + 4 * (r / 2)];
  for (int r = 0; r < 2; ++r) rb[r] = b[g * 8 + t + 4 * r];
  float c[4] = {1, 1, 1, 1};
  if constexpr (std::is_same_v<T, bf16>) {
    ptx::mma_bf16(c, ra, rb[0], rb[1]);
  } else {
    ptx::mma_f16(c, ra, rb[0], rb[1]);
  }
  for (int i = 0; i < 4; ++i) d[(g + 8 * (i / 2)) * 8 + t * 2 + i % 2] = c[i];
}

template <class T>
std::vector<T> elements(Values& values, size_t count) {
  std::vector<T> v(count);
  for (T& x : v) x = static_cast<T>(std::round(values.next() * 8) / 4);  // exact in both types
  return v;
}

template <class T>
void run_small(Error& error) {
  Values values;
  const auto a = elements<T>(values, 16 * kDepth);
  const auto b = elements<T>(values, 8 * kDepth);
  DeviceBuffer<T> da(a), db(b);
  DeviceBuffer<float> dd(128);
  ok(launch(multiply_small<T>, {dim3(1), dim3(32)}, reinterpret_cast<const uint32_t*>(da.get()),
            reinterpret_cast<const uint32_t*>(db.get()), dd.get()));
  const auto d = dd.read();
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 8; ++j) {
      double sum = 1;
      for (int k = 0; k < kDepth; ++k) sum += to_float(a[i * kDepth + k]) * to_float(b[j * kDepth + k]);
      error.add(d[i * 8 + j], sum, 1e-3, 1e-4);
    }
  }
}

TEST(MatrixKernel, SmallProductsOfEveryType) {
  expect_sound(run_small<bf16>, 2);
  expect_sound(run_small<fp16>, 2);
}

// ---- ldmatrix: four matrices, transposed and not
__global__ void matrices(const uint16_t* in, uint32_t* registers) {
  SHARED(uint16_t, tile, [256]);
  const unsigned lane = threadIdx.x;
  for (unsigned i = lane; i < 256; i += 32) tile[i] = in[i];
  __syncwarp();
  uint32_t r[4], transposed[4], two[2], one[1];
  ptx::ldmatrix(r, tile + lane * 8);
  ptx::ldmatrix<4, true>(transposed, tile + lane * 8);
  ptx::ldmatrix(two, tile + lane * 8);
  ptx::ldmatrix<1, true>(one, tile + lane * 8);
  for (int i = 0; i < 4; ++i) registers[i * 32 + lane] = r[i];
  for (int i = 0; i < 4; ++i) registers[(4 + i) * 32 + lane] = transposed[i];
  registers[8 * 32 + lane] = two[1];
  registers[9 * 32 + lane] = one[0];
}

TEST(MatrixKernel, LoadMatrices) {
  expect_sound([](Error& e) {
    std::vector<uint16_t> in(256);
    for (int i = 0; i < 256; ++i) in[i] = static_cast<uint16_t>(i * 7);
    DeviceBuffer<uint16_t> from(in);
    DeviceBuffer<uint32_t> registers(10 * 32);
    ok(launch(matrices, {dim3(1), dim3(32)}, from.get(), registers.get()));
    const auto r = registers.read();
    const auto pair = [&](int m, int lane, bool transposed) {
      const int major = lane / 4, minor = lane % 4 * 2;
      const uint32_t low = transposed ? in[m * 64 + minor * 8 + major] : in[m * 64 + major * 8 + minor];
      const uint32_t high = transposed ? in[m * 64 + (minor + 1) * 8 + major] : in[m * 64 + major * 8 + minor + 1];
      return low | high << 16;
    };
    for (int lane = 0; lane < 32; ++lane) {
      for (int m = 0; m < 4; ++m) e.add(r[m * 32 + lane], pair(m, lane, false), 0.1, 0);
      for (int m = 0; m < 4; ++m) e.add(r[(4 + m) * 32 + lane], pair(m, lane, true), 0.1, 0);
      e.add(r[8 * 32 + lane], pair(1, lane, false), 0.1, 0);
      e.add(r[9 * 32 + lane], pair(0, lane, true), 0.1, 0);
    }
  });
}

// ---- wgmma: one warpgroup, D [64, n] = A [64, 16] B [n, 16]^T, twice (the second time accumulated)
enum Form { kShared, kRegisters };

// Byte of element (row, k) in shared memory for a layout; the same formulas as in the PTX manual.
[[maybe_unused]] __host__ __device__ inline int place(int row, int k, ptx::Major major, ptx::Swizzle swizzle,
                                                      int rows) {
  constexpr int kBytes = 2;
  const int width = swizzle == ptx::Swizzle::k128  ? 128
                    : swizzle == ptx::Swizzle::k64 ? 64
                    : swizzle == ptx::Swizzle::k32 ? 32
                                                   : 0;
  int at;
  if (major == ptx::Major::kK) {
    const int byte = k * kBytes;
    at = width ? row * width + byte : byte / 16 * rows * 16 + row * 16 + byte % 16;
  } else if (width) {
    const int across = width / kBytes;
    at = row / across * width * 16 + k * width + row % across * kBytes;
  } else {
    at = row / 8 * 256 + k * 16 + row % 8 * kBytes;
  }
  return width ? at ^ ((at >> 7 & (width / 16 - 1)) << 4) : at;
}
[[maybe_unused]] __host__ __device__ inline ptx::TileLayout layout_of(ptx::Major major, ptx::Swizzle swizzle,
                                                                      int rows) {
  const unsigned width = swizzle == ptx::Swizzle::k128 ? 128 : swizzle == ptx::Swizzle::k64 ? 64 : 32;
  ptx::TileLayout layout;
  layout.swizzle = swizzle;
  const bool plain = swizzle == ptx::Swizzle::kNone;
  if (major == ptx::Major::kK) {
    layout.stride = plain ? 128 : 8 * width;
    layout.leading = plain ? static_cast<unsigned>(rows) * 16 : 16;
  } else if (plain) {
    layout.stride = 256;
    layout.leading = 128;
  } else {
    layout.stride = 8 * width;
    layout.leading = 16 * width;
  }
  return layout;
}

// inside: the operands begin so many times 32 bytes within the rows of their tiles. Of an A across its rows: at 0.
template <class T, int N, Form F, ptx::Major AMajor, ptx::Major BMajor>
__global__ void __launch_bounds__(128)
    multiply_group(const T* a, const T* b, float* d, ptx::Swizzle swizzle, int inside) {
#if PTX_SM90A
  DYN_SMEM(raw);
  unsigned char *sa = raw, *sb = raw + 16384;
  const int inside_a = AMajor == ptx::Major::kK ? inside : 0;
  const int k_of_a = inside_a * kDepth, k_of_b = BMajor == ptx::Major::kK ? inside * kDepth : 0;
  const int row_of_b = BMajor == ptx::Major::kK ? 0 : inside * kDepth;
  const int thread = static_cast<int>(threadIdx.x), g = thread % 32 / 4, t = thread % 4;
  for (int i = thread; i < 64 * kDepth; i += 128) {
    *reinterpret_cast<T*>(sa + place(i / kDepth, k_of_a + i % kDepth, AMajor, swizzle, 64)) = a[i];
  }
  for (int i = thread; i < N * kDepth; i += 128) {
    *reinterpret_cast<T*>(sb + place(row_of_b + i / kDepth, k_of_b + i % kDepth, BMajor, swizzle, N)) = b[i];
  }
  uint32_t ra[4];
  for (int r = 0; r < 4; ++r) {
    const int row = thread / 32 * 16 + g + 8 * (r % 2);
    ra[r] = reinterpret_cast<const uint32_t*>(a)[row * 8 + t + 4 * (r / 2)];
  }
  ptx::fence_proxy_async();
  __syncthreads();
  const uint64_t da = ptx::matrix_descriptor(sa, layout_of(AMajor, swizzle, 64)) + 2 * inside_a;  // 16 bytes
  const uint64_t db = ptx::matrix_descriptor(sb, layout_of(BMajor, swizzle, N)) + 2 * inside;
  float c[N / 2];
  ptx::wgmma_fence(c, ra);
  for (int i = 0; i < 2; ++i) {
    if constexpr (F == kShared) {
      ptx::wgmma<T, AMajor, BMajor>(c, da, db, i > 0);
    } else {
      ptx::wgmma<T, BMajor>(c, ra, db, i > 0);
    }
  }
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>(c);
  for (int i = 0; i < N / 2; ++i) {
    const int row = thread / 32 * 16 + g + 8 * (i / 2 % 2), column = i / 4 * 8 + t * 2 + i % 2;
    d[row * N + column] = c[i];
  }
#endif
}

template <class T, int N, Form F = kShared, ptx::Major AMajor = ptx::Major::kK, ptx::Major BMajor = ptx::Major::kK>
void group_product(ptx::Swizzle swizzle = ptx::Swizzle::k128, int inside = 0) {
  SCOPED_TRACE(::testing::Message() << "n " << N << " form " << F << " swizzle " << static_cast<int>(swizzle)
                                    << " majors " << static_cast<int>(AMajor) << static_cast<int>(BMajor));
  const auto run = [swizzle, inside](Error& error) {
    Values values;
    const auto a = elements<T>(values, 64 * kDepth);
    const auto b = elements<T>(values, N * kDepth);
    DeviceBuffer<T> da(a), db(b);
    DeviceBuffer<float> dd(64 * N);
    constexpr auto kKernel = multiply_group<T, N, F, AMajor, BMajor>;
    ok(launch(kKernel, {dim3(1), dim3(128), 65536}, da.get(), db.get(), dd.get(), swizzle, inside));
    const auto d = dd.read();
    for (int i = 0; i < 64; ++i) {
      for (int j = 0; j < N; ++j) {
        double sum = 0;
        for (int k = 0; k < kDepth; ++k) sum += 2.0 * to_float(a[i * kDepth + k]) * to_float(b[j * kDepth + k]);
        error.add(d[i * N + j], sum, 1e-3, 1e-4);
      }
    }
  };
  expect_sound(run, 1);
}

using ptx::Major;
using ptx::Swizzle;

TEST(MatrixKernel, GroupProductsOfEveryType) {
  if (!has_capability(9)) GTEST_SKIP() << "wgmma needs compute capability 9.0";
  group_product<bf16, 64>();
  group_product<fp16, 64>();
  group_product<bf16, 64, kRegisters>();
  group_product<fp16, 64, kRegisters>();
}

TEST(MatrixKernel, GroupProductsOfManyShapes) {
  if (!has_capability(9)) GTEST_SKIP() << "wgmma needs compute capability 9.0";
  group_product<bf16, 8>();
  group_product<bf16, 24>();
  group_product<bf16, 136>();
  group_product<bf16, 256>();
  group_product<bf16, 256, kRegisters>();
}

TEST(MatrixKernel, GroupProductsOfEveryLayout) {
  if (!has_capability(9)) GTEST_SKIP() << "wgmma needs compute capability 9.0";
  for (const Swizzle swizzle : {Swizzle::kNone, Swizzle::k32, Swizzle::k64, Swizzle::k128}) {
    group_product<bf16, 128>(swizzle);
    group_product<bf16, 128, kShared, Major::kRows, Major::kRows>(swizzle);
    group_product<fp16, 128, kRegisters, Major::kK, Major::kRows>(swizzle);
  }
}

// As the kernels of attention and of SwiGLU step along k, and to the second half of the columns of a tile.
TEST(MatrixKernel, GroupProductsOfOperandsThatBeginInsideARow) {
  if (!has_capability(9)) GTEST_SKIP() << "wgmma needs compute capability 9.0";
  for (const int inside : {1, 2, 3}) group_product<bf16, 64>(Swizzle::k128, inside);
  group_product<bf16, 32, kShared, Major::kK, Major::kRows>(Swizzle::k128, 2);
}
}  // namespace
}  // namespace athanor::cuda::testing
