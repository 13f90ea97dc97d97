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

#include "cpu/kernel.inl"

constexpr Kernels kTable = {"AVX2",
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
                            softmax,
                            score_gradient};

}  // namespace
#pragma GCC pop_options

const Kernels* kernels_avx2() { return &kTable; }
}  // namespace athanor
#else
namespace athanor {
const Kernels* kernels_avx2() { return nullptr; }
}  // namespace athanor
#endif
