// Vectors for memory-bound kernels: 32 floats at a time, read from and rounded to rows of any float type.
// A kernel is a struct with a static ATHANOR_INLINE template run<L>(args...), L = floats per hardware vector, called as
// simd::dispatch<Kernel>(args...): it is compiled for three instruction sets, and the best one for the CPU runs. All
// functions it calls must be ATHANOR_INLINE, lambdas ATHANOR_INLINE_LAMBDA. Sums over lanes have the same order for
// every L, so results differ between CPUs only in files that allow fused multiply-add (flags.cmake).
#pragma once
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "cpu/isa.h"
#include "cpu/simd.h"
#include "tensor/half.h"

#pragma GCC diagnostic ignored "-Wpsabi"  // for the whole including file: vectors never cross a real call

#if defined(ATHANOR_SANITIZED)
#define ATHANOR_INLINE_LAMBDA
#define ATHANOR_TARGET(features)
#else
#define ATHANOR_INLINE_LAMBDA __attribute__((always_inline))
#define ATHANOR_TARGET(features) __attribute__((target(features)))
#endif

namespace athanor::simd {

template <int L, class T>
struct Hardware {
  typedef T type __attribute__((vector_size(L * sizeof(T))));
};
template <int L>
using Float = typename Hardware<L, float>::type;
template <int L>
using Int = typename Hardware<L, int32_t>::type;
template <int L>
using Word = typename Hardware<L, uint32_t>::type;

// The order of elements in lanes depends on the dtypes of the kernel's rows (see to_pairs).
template <int L>
struct Vec {
  static constexpr int kWidth = 32, kParts = kWidth / L;
  Float<L> part[kParts];
};
constexpr int64_t kWidth = Vec<4>::kWidth;

// --- arithmetic ------------------------------------------------------------------------------------------------------

template <int L, class Fn>
ATHANOR_INLINE Vec<L> each_part(Fn&& fn) {
  Vec<L> y;
#pragma GCC unroll 8
  for (int i = 0; i < Vec<L>::kParts; ++i) y.part[i] = fn(i);
  return y;
}

#define ATHANOR_VEC_OPERATOR(op)                                                              \
  template <int L>                                                                            \
  ATHANOR_INLINE Vec<L> operator op(const Vec<L>& a, const Vec<L>& b) {                       \
    return each_part<L>([&](int i) ATHANOR_INLINE_LAMBDA { return a.part[i] op b.part[i]; }); \
  }                                                                                           \
  template <int L>                                                                            \
  ATHANOR_INLINE Vec<L> operator op(const Vec<L>& a, float b) {                               \
    return each_part<L>([&](int i) ATHANOR_INLINE_LAMBDA { return a.part[i] op b; });         \
  }                                                                                           \
  template <int L>                                                                            \
  ATHANOR_INLINE Vec<L> operator op(float a, const Vec<L>& b) {                               \
    return each_part<L>([&](int i) ATHANOR_INLINE_LAMBDA { return a op b.part[i]; });         \
  }
ATHANOR_VEC_OPERATOR(+)
ATHANOR_VEC_OPERATOR(-)
ATHANOR_VEC_OPERATOR(*)
ATHANOR_VEC_OPERATOR(/)
#undef ATHANOR_VEC_OPERATOR
template <int L>
ATHANOR_INLINE void operator+=(Vec<L>& a, const Vec<L>& b) {
  a = a + b;
}

template <int L>
ATHANOR_INLINE Vec<L> broadcast(float x) {
  return each_part<L>([&](int) ATHANOR_INLINE_LAMBDA { return Float<L>{} + x; });
}
// a > b ? a : b, which is b if either is NaN.
template <int L>
ATHANOR_INLINE Vec<L> max(const Vec<L>& a, const Vec<L>& b) {
  return each_part<L>([&](int i) ATHANOR_INLINE_LAMBDA { return a.part[i] > b.part[i] ? a.part[i] : b.part[i]; });
}
template <int L>
ATHANOR_INLINE Vec<L> sqrt(const Vec<L>& a) {
  Vec<L> y;
#pragma GCC unroll 32
  for (int i = 0; i < Vec<L>::kWidth; ++i) y.part[i / L][i % L] = __builtin_sqrtf(a.part[i / L][i % L]);
  return y;
}

// Combines all lanes of a vector: i with i + L/2, then L/4, ... 1.
template <int L, class Fn>
ATHANOR_INLINE float fold_part(const Float<L>& v, const Fn& fn) {
  if constexpr (L == 2) {
    return fn(v[0], v[1]);
  } else {
    struct Halves {
      Float<L / 2> low, high;
    };
    const Halves h = std::bit_cast<Halves>(v);
    return fold_part<L / 2>(fn(h.low, h.high), fn);
  }
}
template <int L, class Fn>
ATHANOR_INLINE float fold(Vec<L> v, const Fn& fn) {
#pragma GCC unroll 4
  for (int n = Vec<L>::kParts / 2; n > 0; n /= 2)
#pragma GCC unroll 4
    for (int i = 0; i < n; ++i) v.part[i] = fn(v.part[i], v.part[i + n]);
  return fold_part<L>(v.part[0], fn);
}
template <int L>
ATHANOR_INLINE float sum(const Vec<L>& v) {
  return fold(v, [](auto a, auto b) ATHANOR_INLINE_LAMBDA { return a + b; });
}
template <int L>
ATHANOR_INLINE float max(const Vec<L>& v) {
  return fold(v, [](auto a, auto b) ATHANOR_INLINE_LAMBDA { return a > b ? a : b; });
}

// e^x for x <= 0, error below 1.5 ulp; NaN stays NaN; 0 for x < -87, near the end of the normal range.
// x = n ln2 + r, |r| <= ln2/2; e^r = 1 + r + r^2 q(r), q interpolated at the Chebyshev nodes (relative error 1e-8).
template <int L>
ATHANOR_INLINE Float<L> exp_nonpositive(const Float<L>& v) {
  constexpr float kRound = 0x1.8p23f + 127.0f;  // leaves the nearest integer plus the exponent bias in the low bits
  const Float<L> shifted = v * 0x1.715476p0f + kRound, n = shifted - kRound;
  const Float<L> r = (v - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;  // ln2 in two parts; the first product is exact
  Float<L> p = r * 0x1.6d11fep-10f + 0x1.120c62p-7f;
  p = p * r + 0x1.555518p-5f;
  p = p * r + 0x1.5554dcp-3f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const Float<L> y = p * (Float<L>)((Word<L>)shifted << 23);
  return v < -87.0f ? Float<L>{} : y;
}
template <int L>
ATHANOR_INLINE Vec<L> exp_nonpositive(const Vec<L>& x) {
  return each_part<L>([&](int i) ATHANOR_INLINE_LAMBDA { return exp_nonpositive<L>(x.part[i]); });
}

// tanh(x) and its slope 1 - tanh^2, error below 4 ulp: up to |x| = 1 a convergent of tanh's continued fraction
// [Lambert 1761], x (945 + 105 x^2 + x^4) / (945 + 420 x^2 + 15 x^4), beyond it and for the slope by e^-2|x|.
template <int L>
ATHANOR_INLINE void tanh(const Float<L>& x, Float<L>& value, Float<L>& slope) {
  const Float<L> negative = -1.0f * x, size = x > negative ? x : negative, e = exp_nonpositive<L>(-2.0f * size),
                 x2 = x * x;
  const Float<L> near = x * ((x2 + 105.0f) * x2 + 945.0f) / ((15.0f * x2 + 420.0f) * x2 + 945.0f);
  const Float<L> far = (1.0f - e) / (1.0f + e);
  value = size <= 1.0f ? near : (x > 0.0f ? far : -far);
  slope = 4.0f * e / ((1.0f + e) * (1.0f + e));
}
template <int L>
struct Tanh {
  Vec<L> value, slope;
};
template <int L>
ATHANOR_INLINE Tanh<L> tanh(const Vec<L>& x) {
  Tanh<L> y;
#pragma GCC unroll 8
  for (int i = 0; i < Vec<L>::kParts; ++i) tanh<L>(x.part[i], y.value.part[i], y.slope.part[i]);
  return y;
}

// --- 16-bit floats ---------------------------------------------------------------------------------------------------
// The conversions of tensor/half.h. A word holds an even element in its lower half and the next, odd one above it.
// int16_t stands for the lower half of a float's bits: it is sign-extended into the bits of a float, and written back
// from there.

template <class T, int L>
ATHANOR_INLINE Float<L> widen_even(const Word<L>& w) {
  if constexpr (std::is_same_v<T, bf16>) {
    return (Float<L>)(w << 16);
  } else if constexpr (std::is_same_v<T, int16_t>) {
    return (Float<L>)((Int<L>)(w << 16) >> 16);
  } else {
    const Word<L> magnitude = (w & 0x7fffu) << 13;
    const Float<L> scaled = (Float<L>)magnitude * 0x1p112f;
    const Word<L> special = (Word<L>)((Int<L>)magnitude >= 0x0f800000) & 0x7f800000u;
    return (Float<L>)((Word<L>)scaled | special | (w << 16 & 0x80000000u));
  }
}
template <class T, int L>
ATHANOR_INLINE Float<L> widen_odd(const Word<L>& w) {
  if constexpr (std::is_same_v<T, bf16>)
    return (Float<L>)(w & 0xffff0000u);
  else
    return widen_even<T, L>(w >> 16);  // for int16_t, too: the upper half is shifted out
}

// x rounded to T, to nearest even: for bf16 in the upper half of the word, with garbage below; for f16 in the lower
// half.
template <class T, int L>
ATHANOR_INLINE Word<L> round_bits(const Float<L>& x) {
  const Word<L> u = (Word<L>)x;
  if constexpr (std::is_same_v<T, bf16>) {
    const Word<L> rounded = u + 0x7fffu + ((u >> 16) & 1u);
    return x == x ? rounded : (u | 0x400000u);  // NOLINT(misc-redundant-expression): false for NaN
  } else if constexpr (std::is_same_v<T, int16_t>) {
    return u & 0xffffu;
  } else {
    const Word<L> a = u & 0x7fffffffu, ones = Word<L>{} + 1u;
    const Word<L> normal = (a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13;
    const Word<L> small = (Word<L>)((Float<L>)a + 0.5f) - 0x3f000000u;
    const Int<L> order = (Int<L>)a;
    const Word<L> finite = order < 0x38800000 ? small : normal;
    const Word<L> special = order > 0x7f800000 ? ones * 0x7e00u : ones * 0x7c00u;
    return ((u >> 16) & 0x8000u) | (order >= 0x477ff000 ? special : finite);
  }
}

// --- rows ------------------------------------------------------------------------------------------------------------

template <class V, class T>
ATHANOR_INLINE V read(const T* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
template <class V, class T>
ATHANOR_INLINE void write(T* p, const V& v) {
  std::memcpy(p, &v, sizeof v);
}

template <int L, int... I>
ATHANOR_INLINE Float<L> evens(const Float<L>& a, const Float<L>& b, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, b, (2 * I)...);
}
template <int L, int... I>
ATHANOR_INLINE Float<L> odds(const Float<L>& a, const Float<L>& b, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, b, (2 * I + 1)...);
}
template <int L, int kFirst, int... I>
ATHANOR_INLINE Float<L> zip(const Float<L>& a, const Float<L>& b, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, b, (kFirst + I / 2 + (I % 2) * L)...);
}

// Order of 32 elements in the lanes of a Vec: consecutive, or in pairs, i.e. even elements in the first half of the
// vectors and odd ones in the second, where widening a 16-bit type is only a shift. A kernel uses the order that suits
// its rows; other rows are shuffled when they are loaded or stored.
template <int L>
ATHANOR_INLINE Vec<L> to_pairs(const Vec<L>& v) {
  constexpr int kHalf = Vec<L>::kParts / 2;
  using Lanes = std::make_integer_sequence<int, L>;
  Vec<L> y;
#pragma GCC unroll 4
  for (int i = 0; i < kHalf; ++i) {
    y.part[i] = evens<L>(v.part[2 * i], v.part[2 * i + 1], Lanes{});
    y.part[i + kHalf] = odds<L>(v.part[2 * i], v.part[2 * i + 1], Lanes{});
  }
  return y;
}
template <int L>
ATHANOR_INLINE Vec<L> from_pairs(const Vec<L>& v) {
  constexpr int kHalf = Vec<L>::kParts / 2;
  using Lanes = std::make_integer_sequence<int, L>;
  Vec<L> y;
#pragma GCC unroll 4
  for (int i = 0; i < kHalf; ++i) {
    y.part[2 * i] = zip<L, 0>(v.part[i], v.part[i + kHalf], Lanes{});
    y.part[2 * i + 1] = zip<L, L / 2>(v.part[i], v.part[i + kHalf], Lanes{});
  }
  return y;
}

template <int L, bool kPairs, class T>
ATHANOR_INLINE Vec<L> load(const T* p) {
  Vec<L> y;
  if constexpr (sizeof(T) == 2) {
    constexpr int kHalf = Vec<L>::kParts / 2;
#pragma GCC unroll 4
    for (int i = 0; i < kHalf; ++i) {
      const Word<L> w = read<Word<L>>(p + i * 2 * L);
      y.part[i] = widen_even<T, L>(w);
      y.part[i + kHalf] = widen_odd<T, L>(w);
    }
    return kPairs ? y : from_pairs(y);
  } else {
#pragma GCC unroll 8
    for (int i = 0; i < Vec<L>::kParts; ++i) y.part[i] = read<Float<L>>(p + i * L);
    return kPairs ? to_pairs(y) : y;
  }
}

template <int L, bool kPairs, class T>
ATHANOR_INLINE void store(T* p, const Vec<L>& v) {
  if constexpr (sizeof(T) == 2) {
    constexpr int kHalf = Vec<L>::kParts / 2;
    const Vec<L> x = kPairs ? v : to_pairs(v);
#pragma GCC unroll 4
    for (int i = 0; i < kHalf; ++i) {
      const Word<L> even = round_bits<T, L>(x.part[i]), odd = round_bits<T, L>(x.part[i + kHalf]);
      if constexpr (std::is_same_v<T, bf16>)
        write(p + i * 2 * L, (even >> 16) | (odd & 0xffff0000u));
      else
        write(p + i * 2 * L, even | (odd << 16));
    }
  } else {
    const Vec<L> x = kPairs ? from_pairs(v) : v;
#pragma GCC unroll 8
    for (int i = 0; i < Vec<L>::kParts; ++i) write(p + i * L, x.part[i]);
  }
}

// Index of the element in each lane.
template <bool kPairs>
constexpr std::array<int32_t, kWidth> element_numbers() {
  std::array<int32_t, kWidth> number{};
  for (int i = 0; i < kWidth; ++i) number[i] = kPairs ? 2 * (i % (kWidth / 2)) + i / (kWidth / 2) : i;
  return number;
}
// v in the lanes of the first `count` elements, `other` in the remaining lanes.
template <int L, bool kPairs>
ATHANOR_INLINE Vec<L> first_elements(const Vec<L>& v, int64_t count, float other) {
  constexpr auto kNumber = element_numbers<kPairs>();
  const int32_t n = int32_t(count);
  return each_part<L>([&](int i) ATHANOR_INLINE_LAMBDA {
    return read<Int<L>>(kNumber.data() + i * L) < n ? v.part[i] : Float<L>{} + other;
  });
}

// 32 elements of each row of a kernel, starting at column `at`.
template <int L, bool kPairs>
struct Whole {
  int64_t at;
  template <class T>
  ATHANOR_INLINE Vec<L> load(const T* row) const {
    return simd::load<L, kPairs>(row + at);
  }
  template <class T>
  ATHANOR_INLINE void store(T* row, const Vec<L>& v) const {
    simd::store<L, kPairs>(row + at, v);
  }
  // Replaces the lanes of v past the end of the row; here there are none.
  ATHANOR_INLINE Vec<L> or_else(const Vec<L>& v, float) const { return v; }
};

// The last elements of each row: lanes past the end are loaded as zeros and not stored.
template <int L, bool kPairs>
struct Rest {
  int64_t at, count;
  template <class T>
  ATHANOR_INLINE Vec<L> load(const T* row) const {
    T workspace[kWidth] = {};
    for (int64_t i = 0; i < count; ++i) workspace[i] = row[at + i];
    return simd::load<L, kPairs>(workspace);
  }
  template <class T>
  ATHANOR_INLINE void store(T* row, const Vec<L>& v) const {
    T workspace[kWidth];
    simd::store<L, kPairs>(workspace, v);
    for (int64_t i = 0; i < count; ++i) row[at + i] = workspace[i];
  }
  ATHANOR_INLINE Vec<L> or_else(const Vec<L>& v, float other) const {
    return first_elements<L, kPairs>(v, count, other);
  }
};

// Calls fn for each 32 of n columns and for the remainder; lanes are in the order that suits rows of T.
template <int L, class T, class Fn>
ATHANOR_INLINE void for_columns(int64_t n, const Fn& fn) {
  constexpr bool kPairs = sizeof(T) == 2;
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) fn(Whole<L, kPairs>{i});
  if (i < n) fn(Rest<L, kPairs>{i, n - i});
}

// --- choice of the instruction set -----------------------------------------------------------------------------------

#if defined(__x86_64__)
template <class Kernel, class... A>
ATHANOR_TARGET("avx512f,avx512bw,avx512dq,avx512vl,avx512cd,fma")
void run_avx512(const A&... args) {
  Kernel::template run<16>(args...);
}
template <class Kernel, class... A>
ATHANOR_TARGET("avx2,fma")
void run_avx2(const A&... args) {
  Kernel::template run<8>(args...);
}
#endif

template <class Kernel, class... A>
void dispatch(const A&... args) {
#if defined(__x86_64__)
  if (isa() >= Isa::avx512) return run_avx512<Kernel>(args...);
  if (isa() >= Isa::avx2) return run_avx2<Kernel>(args...);
#endif
  Kernel::template run<4>(args...);
}

}  // namespace athanor::simd
