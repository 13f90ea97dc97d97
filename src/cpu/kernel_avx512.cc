// AVX-512: 12 x 32 tiles of c in 24 of the 32 registers; multiplies bf16 pairs if the CPU has VDPBF16PS, or in the tile
// unit if it has AMX.
#include "cpu/kernel.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#include <immintrin.h>

#pragma GCC push_options
#pragma GCC target("arch=x86-64-v4,avx512bf16,amx-tile,amx-bf16")
namespace athanor {
namespace {

constexpr int kLanes = 16, kMr = 12, kVectors = 2;
using V = __m512;
inline V madd(float x, V b, V c) { return _mm512_fmadd_ps(_mm512_set1_ps(x), b, c); }
inline V madd_pairs(float x, V b, V c) { return _mm512_dpbf16_ps(c, (__m512bh)_mm512_set1_ps(x), (__m512bh)b); }
// Uses full masks, since GCC 12 warns about the unmasked intrinsics.
inline V widen(const bf16* p) {
  const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return (V)_mm512_maskz_slli_epi32(0xffff, _mm512_maskz_cvtepu16_epi32(0xffff, half), 16);
}
inline V widen(const f16* p) {
  return _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

#include "cpu/kernel.inl"

// One bf16 of each of two vectors, the first in the lower half.
inline V pair_of(V low, V high) {
  const __m512i l = _mm512_maskz_cvtepu16_epi32(0xffff, (__m256i)_mm512_cvtneps_pbh(low)),
                h = _mm512_maskz_cvtepu16_epi32(0xffff, (__m256i)_mm512_cvtneps_pbh(high));
  return (V)_mm512_or_si512(l, _mm512_maskz_slli_epi32(0xffff, h, 16));
}
void pair_rows(float* dst, int64_t dst_stride, const float* src, int64_t src_stride, int64_t rows, int64_t n) {
  for (int64_t r = 0; r < rows; r += 2, src += 2 * src_stride, dst += dst_stride)
    for (int64_t j = 0; j < n; j += kLanes)
      store(dst + j, pair_of(load(src + j), r + 1 < rows ? load(src + src_stride + j) : V{}));
}
void round_rows(float* dst, int64_t dst_stride, const float* src, int64_t src_stride, int64_t rows, int64_t n) {
  for (int64_t r = 0; r < rows; ++r, src += src_stride, dst += dst_stride)
    for (int64_t j = 0; j < n; j += kLanes)
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(dst + j / 2), (__m256i)_mm512_cvtneps_pbh(load(src + j)));
}

#include "cpu/kernel_amx.inl"

constexpr Kernels kPlain = table("AVX-512");
constexpr Kernels with_pairs() {
  Kernels t = kPlain;
  t.name = "AVX-512 with bf16";
  t.mr_pairs = kMr;
  t.by_row_pairs = Micros<true, true, Rows>::kTable;
  t.by_column_pairs = Micros<false, true, Rows>::kTable;
  t.round_rows = round_rows;
  t.pair_rows = pair_rows;
  return t;
}
constexpr Kernels with_tiles() {
  Kernels t = with_pairs();
  t.name = "AMX with bf16";
  t.mr_pairs = kMrTiles;
  t.by_row_pairs = TileMicros<IndicesTo<kMrTiles>::type>::kTable;
  t.by_column_pairs = nullptr;
  t.amx = true;
  t.pack_tiles = pack_tiles;
  t.release = release_tiles;
  return t;
}
constexpr Kernels kWithPairs = with_pairs(), kWithTiles = with_tiles();

}  // namespace
#pragma GCC pop_options

const Kernels* kernels_avx512() { return &kPlain; }
const Kernels* kernels_avx512_bf16() { return &kWithPairs; }
const Kernels* kernels_amx_bf16() { return &kWithTiles; }
}  // namespace athanor
#else
namespace athanor {
const Kernels* kernels_avx512() { return nullptr; }
const Kernels* kernels_avx512_bf16() { return nullptr; }
const Kernels* kernels_amx_bf16() { return nullptr; }
}  // namespace athanor
#endif
