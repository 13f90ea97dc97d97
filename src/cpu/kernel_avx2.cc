// AVX2 with FMA: 6 x 16 tiles of c in 12 of the 16 registers.
#include "cpu/kernel.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#include <immintrin.h>

#pragma GCC push_options
#pragma GCC target("arch=x86-64-v3")
namespace athanor {
namespace {

constexpr int kLanes = 8, kMr = 6, kVectors = 2;
using V = __m256;
inline V madd(float x, V b, V c) { return _mm256_fmadd_ps(_mm256_set1_ps(x), b, c); }
inline V widen(const bf16* p) {
  return (V)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 16);
}
inline V widen(const f16* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }

#include "cpu/kernel.inl"

constexpr Kernels kTable = table("AVX2");

}  // namespace
#pragma GCC pop_options

const Kernels* kernels_avx2() { return &kTable; }
}  // namespace athanor
#else
namespace athanor {
const Kernels* kernels_avx2() { return nullptr; }
}  // namespace athanor
#endif
