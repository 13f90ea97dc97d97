// AVX-512: 12 x 32 tiles of c in 24 of the 32 registers; multiplies bf16 pairs if the CPU has VDPBF16PS.
#include "cpu/kernel.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#include <immintrin.h>

#pragma GCC push_options
#pragma GCC target("arch=x86-64-v4,avx512bf16")
namespace athanor {
namespace {

constexpr int kLanes = 16, kMr = 12, kVectors = 2;
using V = __m512;
inline V madd(float x, V b, V c) { return _mm512_fmadd_ps(_mm512_set1_ps(x), b, c); }
inline V madd_pairs(float x, V b, V c) { return _mm512_dpbf16_ps(c, (__m512bh)_mm512_set1_ps(x), (__m512bh)b); }
// With full masks, since GCC 12 warns about the unmasked intrinsics.
inline V widen(const bf16* p) {
  const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return (V)_mm512_maskz_slli_epi32(0xffff, _mm512_maskz_cvtepu16_epi32(0xffff, half), 16);
}
inline V widen(const f16* p) {
  return _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

#include "cpu/kernel.inl"

constexpr Kernels kPlain = {"AVX-512",
                            kMr,
                            kNr,
                            Micros<true, false, Rows>::kTable,
                            Micros<false, false, Rows>::kTable,
                            nullptr,
                            nullptr,
                            pack_rows,
                            pack_columns,
                            pack_transposed,
                            kDots,
                            kSums,
                            softmax,
                            score_gradient};
constexpr Kernels kWithPairs = {"AVX-512 with bf16",
                                kMr,
                                kNr,
                                kPlain.by_row,
                                kPlain.by_column,
                                Micros<true, true, Rows>::kTable,
                                Micros<false, true, Rows>::kTable,
                                pack_rows,
                                pack_columns,
                                pack_transposed,
                                kDots,
                                kSums,
                                softmax,
                                score_gradient};

}  // namespace
#pragma GCC pop_options

const Kernels* kernels_avx512(bool pairs) { return pairs ? &kWithPairs : &kPlain; }
}  // namespace athanor
#else
namespace athanor {
const Kernels* kernels_avx512(bool) { return nullptr; }
}  // namespace athanor
#endif
