// Normally distributed initial values: exactly random_normal() of base/rng.h, computed many at a time.
// Logarithm, sine and cosine are evaluated in double to a few units in the last place; where that could decide how a
// value rounds to f32 (one in eight million), the value comes from random_normal() itself.
#include <algorithm>
#include <cmath>

#include "base/rng.h"
#include "cpu/chunks.h"
#include "cpu/cpu_ops.h"
#include "cpu/philox.h"
#include "cpu/vec.h"

namespace athanor {
namespace {

// Far above the error of the following code plus that of any libm: each step adds less than 2 units of 2^-53, seven in
// all.
constexpr double kDoubt = 0x1p-48;

template <int H>
using Double = typename simd::Hardware<H, double>::type;
template <int H>
using Long = typename simd::Hardware<H, uint64_t>::type;

constexpr uint64_t kTwo52 = 0x4330000000000000u;  // 2^52: bits of 2^52 + integer hold the integer in the low 52 bits
template <int H>
ATHANOR_INLINE Double<H> to_double(const Long<H>& integer) {  // integer < 2^32
  return (Double<H>)(integer | kTwo52) - 0x1p52;
}

// log(u) for normal u > 0: u = 2^e m with m in [sqrt(1/2), sqrt(2)), log m = 2 atanh(s), s = (m - 1) / (m + 1).
template <int H>
ATHANOR_INLINE Double<H> log(const Double<H>& u) {
  constexpr uint64_t kRootHalf = 0x3fe6a09e667f3bcdu, kOne = 0x3ff0000000000000u;
  const Long<H> biased = ((Long<H>)u + (kOne - kRootHalf)) >> 52;  // e + 1023
  const Double<H> m = (Double<H>)((Long<H>)u - (biased << 52) + kOne), e = to_double<H>(biased) - 1023.0;
  const Double<H> f = m - 1.0, s = f / (2.0 + f), s2 = s * s;
  Double<H> p = s2 * (1.0 / 21) + 1.0 / 19;  // the series of atanh(s) / s - 1 over s2, |s| < 0.172
#pragma GCC unroll 8
  for (int k = 17; k >= 3; k -= 2) p = p * s2 + 1.0 / k;
  constexpr double kLn2High = 0x1.62e42fefa38p-1,
                   kLn2Low = 0x1.ef35793c7673p-45;  // the first has 41 bits: e kLn2High is exact
  return e * kLn2High + (2 * s + (2 * s * (s2 * p) + e * kLn2Low));
}

template <int H>
struct SinCos {
  Double<H> sin, cos;
};
// For 0 <= a < 7: a = k pi/2 + r, |r| <= pi/4, pi/2 in three parts so that r is exact to its last bits; Taylor series.
template <int H>
ATHANOR_INLINE SinCos<H> sin_cos(const Double<H>& a) {
  constexpr double kHalfPi1 = 0x1.921fb54442d00p0, kHalfPi2 = 0x1.8469898cc5100p-48, kHalfPi3 = 0x1.c06e0e6894812p-94;
  constexpr double kRound = 0x1.8p52;  // adding it leaves the nearest integer in the low bits
  const Double<H> shifted = a * 0x1.45f306dc9c883p-1 + kRound, k = shifted - kRound;
  const Double<H> r = ((a - k * kHalfPi1) - k * kHalfPi2) - k * kHalfPi3, r2 = r * r;
  Double<H> s = r2 * (1 / 355687428096000.0) - 1 / 1307674368000.0;  // 1/17!, 1/15!
  s = s * r2 + 1 / 6227020800.0;
  s = s * r2 - 1 / 39916800.0;
  s = s * r2 + 1 / 362880.0;
  s = s * r2 - 1 / 5040.0;
  s = s * r2 + 1 / 120.0;
  s = s * r2 - 1 / 6.0;
  s = r + r * (r2 * s);
  Double<H> c = r2 * (1 / 20922789888000.0) - 1 / 87178291200.0;  // 1/16!, 1/14!
  c = c * r2 + 1 / 479001600.0;
  c = c * r2 - 1 / 3628800.0;
  c = c * r2 + 1 / 40320.0;
  c = c * r2 - 1 / 720.0;
  c = c * r2 + 1 / 24.0;
  const Double<H> half = r2 * 0.5, one = 1.0 - half;  // 1 - r2/2 is rounded; (1 - one) - half is the rounding error
  c = one + (((1.0 - one) - half) + r2 * r2 * c);
  const Long<H> quadrant = (Long<H>)shifted, odd = (Long<H>)((quadrant & 1) != 0);
  const Long<H> sin_bits = ((Long<H>)s & ~odd) | ((Long<H>)c & odd),
                cos_bits = ((Long<H>)c & ~odd) | ((Long<H>)s & odd);
  return {(Double<H>)(sin_bits ^ ((quadrant & 2) << 62)), (Double<H>)(cos_bits ^ (((quadrant + 1) & 2) << 62))};
}

constexpr int kPairs = 64;  // Box-Muller pairs per step

// value[k] = random_normal(seed, stream, 2 pair + k) as two floats that bracket it.
struct Brackets {
  float low[2 * kPairs], high[2 * kPairs];
};
template <int H>
ATHANOR_INLINE void put(float* out, const Double<H>& sin, const Double<H>& cos) {
  const auto s = __builtin_convertvector(sin, simd::Float<H>), c = __builtin_convertvector(cos, simd::Float<H>);
#pragma GCC unroll 8
  for (int l = 0; l < H; ++l) {
    out[2 * l] = c[l];
    out[2 * l + 1] = s[l];
  }
}
template <int L>
ATHANOR_INLINE void box_muller(Brackets& b, const PhiloxBlocks<kPairs>& random) {
  constexpr int H = L / 2;
  for (int j = 0; j < kPairs; j += H) {
    const auto number = [&](int word) ATHANOR_INLINE_LAMBDA {
      return to_double<H>(__builtin_convertvector(simd::read<simd::Word<H>>(random.word[word] + j), Long<H>));
    };
    const Double<H> u = (number(0) + 0.5) * 0x1p-32, v = (number(1) + 0.5) * 0x1p-32;
    const Double<H> square = -2.0 * log<H>(u);
    Double<H> r;
#pragma GCC unroll 8
    for (int l = 0; l < H; ++l) r[l] = __builtin_sqrt(square[l]);
    const SinCos<H> t = sin_cos<H>(6.283185307179586476925 * v);
    const Double<H> sin = r * t.sin, cos = r * t.cos;
    put<H>(b.low + 2 * j, sin * (1 - kDoubt), cos * (1 - kDoubt));
    put<H>(b.high + 2 * j, sin * (1 + kDoubt), cos * (1 + kDoubt));
  }
}

struct Normal {
  Noise noise;
  float mean, std;
};

struct FillNormal {
  template <int L, class T>
  static ATHANOR_INLINE void run(T* x, int64_t n, const Normal& a) {
    for (int64_t done = 0; done < n;) {
      const uint64_t first = a.noise.first + uint64_t(done), skip = first % 2;
      PhiloxBlocks<kPairs> random;
      Brackets b;
      random.fill(a.noise.seed, a.noise.stream, first / 2);
      box_muller<L>(b, random);
      const int64_t count = std::min(n - done, int64_t(2 * kPairs - skip));
      for (int64_t i = 0; i < count; ++i) {
        float z = b.low[skip + uint64_t(i)];
        if (z != b.high[skip + uint64_t(i)]) z = random_normal(a.noise.seed, a.noise.stream, first + uint64_t(i));
        x[done + i] = from_float<T>(a.mean + a.std * z);
      }
      done += count;
    }
  }
};

}  // namespace

void CpuOps::run(const RandomNormal& op, void*) {
  by_float(op.x.dtype, [&]<class T>() {
    T* x = flat<T>(op.x);
    pool_.parallel_ranges(op.x.numel(), kChunkElements, [&](int64_t begin, int64_t end) {
      const Normal a{{op.seed, op.stream, op.first + uint64_t(begin)}, op.mean, op.std};
      if (op.std == 0)
        std::fill(x + begin, x + end, from_float<T>(op.mean));
      else
        simd::dispatch<FillNormal>(x + begin, end - begin, a);
    });
  });
}

}  // namespace athanor
