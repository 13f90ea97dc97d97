// Prepares FP8/FP4 operands for GEMMs: transposes or packs values, dequantizes them to f32, and rearranges scales into
// the library's layout.
// Layout: row-major. Transposing uses tiles of 64 by 64 values; other kernels have one thread per element, or per 16
// values to pack. Memory bound. Each output is written by one thread. Not timed on a GPU yet.
#include "cuda/quantize/scaled_gemm.h"

#include "cuda/host_tools.h"
#include "cuda/launch.h"
#include "cuda/quantize/encode.h"

namespace athanor::cuda {
namespace {

constexpr int kThreads = 256;
// One-byte values per side of a tile, and per 16-byte access.
constexpr int kTileSide = 64, kPiece = 16;
constexpr int kPieces = kTileSide / kPiece;  // 16-byte pieces per row of a tile; a thread has one piece
constexpr int kStride = kTileSide / 4 + 1;   // words per row in shared memory; one word of padding reduces bank
                                             // conflicts
static_assert(kThreads == kTileSide * kPieces);

// Packs FP4 values, each in the low half of a byte: 8 bytes become 4 bytes with two values each.
__device__ __forceinline__ uint32_t packed(uint32_t first, uint32_t second) {
  const auto halves = [](uint32_t w) {
    const uint32_t pairs = (w & 0x000f000fu) | (w & 0x0f000f00u) >> 4;  // bytes 0 and 2 have two values each
    return (pairs & 0xffu) | (pairs >> 8 & 0xff00u);
  };
  return halves(first) | halves(second) << 16;
}

template <bool kPack>
__global__ void __launch_bounds__(kThreads)
    transpose_bytes(uint8_t* out, const uint8_t* in, int64_t rows, int64_t columns, int tiles) {
  ptx::wait_for_earlier_kernels();
  SHARED(uint32_t, tile, [kTileSide * kStride]);
  const int line = static_cast<int>(threadIdx.x) / kPieces, piece = static_cast<int>(threadIdx.x) % kPieces;
  const int64_t row = int64_t{blockIdx.x / tiles} * kTileSide, column = int64_t{blockIdx.x % tiles} * kTileSide;
  if (row + line < rows && column + piece * kPiece < columns) {
    const uint4 v = ld16(in + (row + line) * columns + column + piece * kPiece);
    uint32_t* to = tile + line * kStride + piece * 4;
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
  }
  __syncthreads();
  if (column + line >= columns || row + piece * kPiece >= rows) return;
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < kPiece; ++i) {
    const uint32_t code = tile[(piece * kPiece + i) * kStride + line / 4] >> 8 * (line % 4) & 0xffu;
    words[i / 4] = i % 4 ? words[i / 4] | code << 8 * (i % 4) : code;
  }
  uint8_t* to = out + ((column + line) * rows + row + piece * kPiece) / (kPack ? 2 : 1);
  if constexpr (kPack)
    st8(to, {packed(words[0], words[1]), packed(words[2], words[3])});
  else
    st16(to, {words[0], words[1], words[2], words[3]});
}

// Each thread packs 16 FP4 values.
__global__ void __launch_bounds__(kThreads) pack_rows(uint8_t* out, const uint8_t* in, int64_t pieces) {
  ptx::wait_for_earlier_kernels();
  const int64_t at = int64_t{blockIdx.x} * kThreads + static_cast<int>(threadIdx.x);
  if (at >= pieces) return;
  const uint4 v = ld16(in + at * kPiece);
  st8(out + at * (kPiece / 2), {packed(v.x, v.y), packed(v.z, v.w)});
}

__global__ void multiply_two(GemmScalars* out, const float* a, const float* b, float beta) {
  ptx::wait_for_earlier_kernels();
  *out = {__fmul_rn(*a, *b), beta};
}

// Arranges one-byte scales in tiles of 128 rows by 4 blocks: the scale of row r and block c of a tile is at r % 32 * 16
// + r / 32 * 4 + c. Tiles along the blocks of a row are consecutive; padding is 0. [cuBLAS manual, "Narrow precision
// data types usage"] The input is in[row / repeat * step_row + block * step_block]: `repeat` rows share one scale.
struct Tiling {
  int64_t rows, blocks, step_row, step_block, repeat;
};
__global__ void __launch_bounds__(kThreads)
    arrange_in_tiles(uint8_t* out, const uint8_t* in, const Tiling t, int64_t count) {
  ptx::wait_for_earlier_kernels();
  const int64_t at = int64_t{blockIdx.x} * kThreads + static_cast<int>(threadIdx.x);
  if (at >= count) return;
  const int64_t across = (t.blocks + kTileBlocks - 1) / kTileBlocks, tile = at / (kTileRows * kTileBlocks);
  const int within = static_cast<int>(at % (kTileRows * kTileBlocks));
  const int64_t row = tile / across * kTileRows + within / 16 + within % 16 / kTileBlocks * 32;
  const int64_t block = tile % across * kTileBlocks + within % kTileBlocks;
  out[at] = row < t.rows && block < t.blocks ? in[row / t.repeat * t.step_row + block * t.step_block] : 0;
}

// out[i, j] = in[i * step_i + j * step_j] for j below `columns`, else 0.
struct Arrangement {
  int64_t rows, columns, stride, step_i, step_j;
};
__global__ void __launch_bounds__(kThreads) arrange(float* out, const float* in, const Arrangement a) {
  ptx::wait_for_earlier_kernels();
  const int64_t at = int64_t{blockIdx.x} * kThreads + static_cast<int>(threadIdx.x);
  if (at >= a.rows * a.stride) return;
  const int64_t i = at / a.stride, j = at % a.stride;
  out[at] = j < a.columns ? in[i * a.step_i + j * a.step_j] : 0.f;
}

struct E2m1 {
  uint8_t bits;
};
template <class Code>
__device__ __forceinline__ float value_of(Code x) {
  return to_float(x);
}
__device__ __forceinline__ float value_of(E2m1 x) { return e2m1_value(x.bits); }

struct ScaleGrid {
  const void* scales;
  const float* global;  // scale of the matrix for FP4, whose block scales are e4m3; else null
  bool e8m0;
  int64_t height, width, across;  // height and width of a scale block, both above 0; blocks per row
};
template <class Code>
__global__ void __launch_bounds__(kThreads)
    decode_quantized(float* out, const Code* quantized, const ScaleGrid g, int64_t count, int64_t columns) {
  ptx::wait_for_earlier_kernels();
  const int64_t at = int64_t{blockIdx.x} * kThreads + static_cast<int>(threadIdx.x);
  if (at >= count) return;
  const int64_t block = at / columns / g.height * g.across + at % columns / g.width;
  float scale;
  if (g.global) {
    scale = __fmul_rn(to_float(static_cast<const __nv_fp8_e4m3*>(g.scales)[block]), *g.global);
  } else if (g.e8m0) {
    const uint32_t bits = static_cast<const uint8_t*>(g.scales)[block];
    scale = __uint_as_float(bits == 0 ? 0x00400000u : bits == 255 ? 0x7fc00000u : bits << 23);
  } else {
    scale = static_cast<const float*>(g.scales)[block];
  }
  out[at] = __fmul_rn(value_of(quantized[at]), scale);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    round_rows(T* d, const float* z, const T* bias, int64_t count, int64_t columns, int64_t stride) {
  ptx::wait_for_earlier_kernels();
  const int64_t at = int64_t{blockIdx.x} * kThreads + static_cast<int>(threadIdx.x);
  if (at >= count) return;
  const int64_t row = at / columns, column = at % columns;
  float value = z[at];
  if (bias) value = __fadd_rn(value, to_float(bias[column]));
  d[row * stride + column] = from_float<T>(value);
}

LaunchConfig threads(int64_t count, cudaStream_t stream) {
  return {dim3(grid_size(div_ceil<int64_t>(count, kThreads))), dim3(kThreads), 0, stream};
}
template <bool kPack>
void transpose(void* out, const Tensor& quantized, cudaStream_t stream) {
  const int64_t rows = quantized.rows(), columns = quantized.cols();
  const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  CHECK(rows % kPiece == 0 && columns % kPiece == 0 && aligned(out) && aligned(quantized.data),
        "quantized values: ", quantized.shape, " at ", quantized.data, " cannot be transposed in pieces of 16 bytes");
  const int64_t tiles = div_ceil<int64_t>(columns, kTileSide), bands = div_ceil<int64_t>(rows, kTileSide);
  CUDA_CHECK(launch(transpose_bytes<kPack>, {dim3(grid_size(tiles * bands)), dim3(kThreads), 0, stream},
                    static_cast<uint8_t*>(out), data<const uint8_t>(quantized), rows, columns,
                    static_cast<int>(tiles)));
}
}  // namespace

void transpose_quantized(void* out, const Tensor& quantized, cudaStream_t stream) {
  transpose<false>(out, quantized, stream);
}

void pack_quantized(void* out, const Tensor& quantized, bool transposes, cudaStream_t stream) {
  if (transposes) return transpose<true>(out, quantized, stream);
  const int64_t pieces = quantized.numel() / kPiece;
  CUDA_CHECK(
      launch(pack_rows, threads(pieces, stream), static_cast<uint8_t*>(out), data<const uint8_t>(quantized), pieces));
}

void multiply_scales(GemmScalars* out, const float* a, const float* b, bool adds, cudaStream_t stream) {
  CUDA_CHECK(launch(multiply_two, {dim3(1), dim3(1), 0, stream}, out, a, b, adds ? 1.f : 0.f));
}

void arrange_scales(const ScalesToArrange& op, cudaStream_t stream) {
  const Shape grid = op.blocks.grid(op.quantized);
  const int64_t outer = op.quantized[1 - op.terms];
  const int64_t step_outer = op.terms == 1 ? grid[1] : 1, step_along = op.terms == 1 ? 1 : grid[1];
  const int64_t outers = op.terms == 1 ? grid[0] : grid[1], along = op.terms == 1 ? grid[1] : grid[0];
  if (in_tiles(op.layout)) {
    const int64_t height = op.terms == 1 ? op.blocks.rows : op.blocks.cols;
    const int64_t count = round_up<int64_t>(outer, kTileRows) * round_up<int64_t>(along, kTileBlocks);
    const Tiling tiling{outer, along, step_outer, step_along, height};
    CUDA_CHECK(launch(arrange_in_tiles, threads(count, stream), static_cast<uint8_t*>(op.out),
                      data<const uint8_t>(op.scales), tiling, count));
    return;
  }
  Arrangement a{1, 1, 1, 0, 0};
  if (op.layout == ScaleLayout::rows)  // a single scale is repeated
    a = {1, outer, outer, 0, outers == 1 ? 0 : step_outer};
  else if (op.layout == ScaleLayout::blocks)
    a = {along, outers, outers, step_along, step_outer};
  else if (op.layout == ScaleLayout::squares)
    a = {outers, along, round_up<int64_t>(along, 4), step_outer, step_along};
  CUDA_CHECK(launch(arrange, threads(a.rows * a.stride, stream), static_cast<float*>(op.out),
                    data<const float>(op.scales), a));
}

void decode(const Decoding& op, cudaStream_t stream) {
  const Tensor& quantized = op.quantized;
  const Blocks& blocks = op.blocks;
  const int64_t count = quantized.numel(), columns = quantized.cols();
  if (count == 0) return;
  const ScaleGrid grid{.scales = op.scales.data,
                       .global = data<const float>(op.global),
                       .e8m0 = op.scales.dtype == DType::f8_e8m0,
                       .height = blocks.rows ? blocks.rows : quantized.rows(),
                       .width = blocks.cols ? blocks.cols : columns,
                       .across = blocks.grid(quantized.shape)[1]};
  const auto of_type = [&]<class Code>() {
    CUDA_CHECK(launch(decode_quantized<Code>, threads(count, stream), op.out, data<const Code>(quantized), grid, count,
                      columns));
  };
  if (quantized.dtype == DType::f8_e4m3)
    of_type.template operator()<__nv_fp8_e4m3>();
  else if (quantized.dtype == DType::f8_e5m2)
    of_type.template operator()<__nv_fp8_e5m2>();
  else
    of_type.template operator()<E2m1>();
}

void round_gemm(const Tensor& d, const float* z, const Tensor& bias, cudaStream_t stream) {
  if (d.numel() == 0) return;
  by_type(d.dtype, [&]<class T>() {
    CHECK(!bias || bias.dtype == d.dtype, "scaled_gemm: the bias is ", bias.dtype, " and d is ", d.dtype,
          "; on a GPU they need one type");
    CUDA_CHECK(launch(round_rows<T>, threads(d.numel(), stream), data<T>(d), z, data<const T>(bias), d.numel(),
                      d.cols(), d.stride()));
  });
}
}  // namespace athanor::cuda
