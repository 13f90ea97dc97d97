// VPDPBUSD multiplies unsigned by signed bytes and adds four products to 32 bits without saturation, so weights are
// stored as unsigned, and 128 times the sum of a's row is subtracted at the end, modulo 2^32. VPMADDUBSW adds two
// products with saturation at 16 bits, which 2 x 127 x 127 does not reach, if the signs of w are first moved to a.
#include "cpu/int8_kernel.h"

#include <cstring>

#include "cpu/isa.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define ATHANOR_INT8_X86 1
#include <immintrin.h>
#endif

namespace athanor {
namespace {

#ifdef ATHANOR_INT8_X86
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v4,avx512vnni")
namespace int8_vnni {
constexpr int kRows = 4, kBytes = 64;
using V = __m512i;
// Uses full masks, since GCC 12 warns about the unmasked intrinsics.
inline V load(const void* p) { return _mm512_maskz_loadu_epi32(0xffff, p); }
inline V dot(V sum, V w, V a) { return _mm512_dpbusd_epi32(sum, w, a); }
inline int32_t total(V sum, int32_t of_a) {
  const __m256i half =
      _mm256_add_epi32(_mm512_maskz_extracti64x4_epi64(0xf, sum, 0), _mm512_maskz_extracti64x4_epi64(0xf, sum, 1));
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
  return int32_t(uint32_t(_mm_cvtsi128_si32(s)) - 128u * uint32_t(of_a));
}
#include "cpu/int8_kernel.inl"
}  // namespace int8_vnni
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("arch=x86-64-v3")
namespace int8_avx2 {
constexpr int kRows = 2, kBytes = 32;
using V = __m256i;
inline V load(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
inline V dot(V sum, V w, V a) {
  const V code = _mm256_xor_si256(w, _mm256_set1_epi8(-128));
  const V pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(code), _mm256_sign_epi8(a, code));
  return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
inline int32_t total(V sum, int32_t) {
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
  return _mm_cvtsi128_si32(s);
}
#include "cpu/int8_kernel.inl"
}  // namespace int8_avx2
#pragma GCC pop_options
#endif

namespace int8_baseline {
constexpr int kRows = 2, kBytes = 16;
struct V {
  int32_t sum;
  const uint8_t* w;
  const int8_t* a;
};
inline V load(const uint8_t* p) { return {0, p, nullptr}; }
inline V load(const int8_t* p) { return {0, nullptr, p}; }
inline V dot(V to, const V& w, const V& a) {
  for (int b = 0; b < kBytes; ++b) to.sum += (int32_t(w.w[b]) - 128) * int32_t(a.a[b]);
  return to;
}
inline int32_t total(const V& v, int32_t) { return v.sum; }
#include "cpu/int8_kernel.inl"
}  // namespace int8_baseline

}  // namespace

Int8DotsFn int8_dots_named(const char* name) {
  const auto is = [&](const char* other) { return std::strcmp(name, other) == 0; };
#ifdef ATHANOR_INT8_X86
  if (is("AVX-512 VNNI") && cpu_has(Isa::avx512) && __builtin_cpu_supports("avx512vnni")) return int8_vnni::dots;
  if (is("AVX2") && cpu_has(Isa::avx2)) return int8_avx2::dots;
#endif
  return is("baseline") ? int8_baseline::dots : nullptr;
}

Int8DotsFn int8_dots() {
  Int8DotsFn found = isa() >= Isa::avx512 ? int8_dots_named("AVX-512 VNNI") : nullptr;
  if (!found && isa() >= Isa::avx2) found = int8_dots_named("AVX2");
  return found ? found : int8_baseline::dots;
}

}  // namespace athanor
