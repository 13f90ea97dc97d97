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
T __ldg(const T* p) {
  return *p;
}
template <class T>
T __ldcg(const T* p) {
  return *p;
}
template <class T>
T __ldcs(const T* p) {
  return *p;
}
template <class T>
void __stcs(T* p, T v) {
  *p = v;
}
template <class T>
void __stcg(T* p, T v) {
  *p = v;
}

inline unsigned __float_as_uint(float x) { return emu::bits_as<unsigned>(x); }
inline int __float_as_int(float x) { return emu::bits_as<int>(x); }
inline float __uint_as_float(unsigned x) { return emu::bits_as<float>(x); }
inline float __int_as_float(int x) { return emu::bits_as<float>(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __brev(unsigned x) {
  unsigned r = 0;
  for (int i = 0; i < 32; ++i) r |= (x >> i & 1) << (31 - i);
  return r;
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const uint64_t bytes = a | uint64_t(b) << 32;
  unsigned r = 0;
  for (int i = 0; i < 4; ++i) r |= unsigned(bytes >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  return r;
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return unsigned((uint64_t(high) << 32 | low) >> (shift & 31));
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return unsigned((uint64_t(high) << 32 | low) << (shift & 31) >> 32);
}
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned(uint64_t(a) * b >> 32); }
inline float rsqrtf(float x) { return 1.f / sqrtf(x); }
inline float __frsqrt_rn(float x) { return float(1.0 / std::sqrt(double(x))); }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1.f / a; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __saturatef(float a) { return a > 0 ? (a < 1 ? a : 1.f) : 0.f; }
inline int __float2int_rn(float a) { return int(std::nearbyint(a)); }
inline int __float2int_rz(float a) { return int(a); }
inline float __int2float_rn(int a) { return float(a); }
#define __expf(x) expf(x)  // macros: glibc declares functions of these names
#define __logf(x) logf(x)
#define __powf(x, y) powf(x, y)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
#define __tanhf(x) tanhf(x)
inline void __sincosf(float x, float* s, float* c) {
  *s = sinf(x);
  *c = cosf(x);
}
template <class T>
T min(T a, T b) {
  return b < a ? b : a;
}
template <class T>
T max(T a, T b) {
  return a < b ? b : a;
}
