// Arithmetic intrinsics and cached loads, with the meaning the CUDA manual gives them. Approximate functions are
// computed exactly here, so results differ from a GPU in the last bits.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
namespace emu {
template <class T, class U>
T bits_as(U value) {
  static_assert(sizeof(T) == sizeof(U));
  T result;
  memcpy(&result, &value, sizeof result);
  return result;
}
}  // namespace emu

template <class T>
T __ldcs(const T* p) {
  return *p;
}
template <class T>
void __stcs(T* p, T v) {
  *p = v;
}

inline unsigned __float_as_uint(float x) { return emu::bits_as<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return emu::bits_as<float>(x); }
inline float __int_as_float(int x) { return emu::bits_as<float>(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const uint64_t bytes = a | uint64_t(b) << 32;
  unsigned r = 0;
  for (int i = 0; i < 4; ++i) r |= unsigned(bytes >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  return r;
}
inline unsigned __vmaxu2(unsigned a, unsigned b) {  // maximum of each 16-bit half
  const unsigned low = (a & 0xffff) > (b & 0xffff) ? a : b, high = a >> 16 > b >> 16 ? a : b;
  return (low & 0xffff) | (high & 0xffff0000u);
}
inline float rsqrtf(float x) { return 1.f / sqrtf(x); }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
#define __expf(x) expf(x)  // a macro: glibc declares a function of this name
template <class T>
T min(T a, T b) {
  return b < a ? b : a;
}
template <class T>
T max(T a, T b) {
  return a < b ? b : a;
}
