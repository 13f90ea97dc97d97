// GELU (tanh form) and SwiGLU. Element-wise; written with the logistic function, which needs one exponential.
#include "cpu/chunks.h"
#include "cpu/cpu_ops.h"
#include "cpu/simd.h"

namespace athanor {
namespace {

// The logistic function 1 / (1 + e^-x) of x and of -x, each with full relative precision.
struct Logistic {
  float of, of_minus;
};
// Both are 1 / (1 + e) or e / (1 + e) with e = e^-|x|, chosen by the sign of x in the integer domain: a comparison
// would make the compiler evaluate the exponential once per branch.
ATHANOR_INLINE Logistic logistic(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x), one = std::bit_cast<uint32_t>(1.0f);
  const float exp = exp_nonpositive(std::bit_cast<float>(bits | 0x80000000u)), t = 1.0f / (1.0f + exp);
  const uint32_t e = std::bit_cast<uint32_t>(exp), swap = (e ^ one) & uint32_t(int32_t(bits) >> 31);
  return {std::bit_cast<float>(one ^ swap) * t, std::bit_cast<float>(e ^ swap) * t};
}

// 0.5 (1 + tanh(u)) = logistic(2u), so gelu(x) = x logistic(x (k1 + k3 x^2)).
constexpr float kGelu1 = 1.5957691216057308f;    // 2 sqrt(2/pi)
constexpr float kGelu3 = 0.071354816272600276f;  // 0.044715 * kGelu1

template <class T>
ATHANOR_CLONES void gelu_fwd(T* y, const T* x, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float v = to_float(x[i]);
    y[i] = from_float<T>(v * logistic(v * (kGelu1 + kGelu3 * (v * v))).of);
  }
}

// d gelu / dx = s + x s (1 - s) (k1 + 3 k3 x^2), s = logistic(...). It is 0 or 1 long before |x| = 30; beyond, x^2
// could overflow.
template <class T>
ATHANOR_CLONES void gelu_bwd(T* dx, const T* dy, const T* x, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float v = to_float(x[i]), v2 = v * v;
    const Logistic s = logistic(v * (kGelu1 + kGelu3 * v2));
    dx[i] = from_float<T>(to_float(dy[i]) * (s.of + v * s.of * s.of_minus * (kGelu1 + 3 * kGelu3 * v2)));
  }
}

template <class T>
ATHANOR_CLONES void swiglu_fwd(T* y, const T* gu, int64_t f, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    const T *gate = gu + i * 2 * f, *up = gate + f;
    T* out = y + i * f;
#pragma omp simd
    for (int64_t c = 0; c < f; ++c) {
      const float g = to_float(gate[c]);
      out[c] = from_float<T>(g * logistic(g).of * to_float(up[c]));
    }
  }
}

// dgate = dy up s (1 + gate (1 - s)), dup = dy gate s, s = logistic(gate). dgu may be gu: an element is read before it
// is written.
template <class T>
ATHANOR_CLONES void swiglu_bwd(T* dgu, const T* dy, const T* gu, int64_t f, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    const T *gate = gu + i * 2 * f, *up = gate + f, *dout = dy + i * f;
    T *dgate = dgu + i * 2 * f, *dup = dgate + f;
#pragma omp simd
    for (int64_t c = 0; c < f; ++c) {
      const float g = to_float(gate[c]), u = to_float(up[c]), ds = to_float(dout[c]);
      const Logistic s = logistic(g);
      dgate[c] = from_float<T>(ds * u * s.of * (1 + g * s.of_minus));
      dup[c] = from_float<T>(ds * g * s.of);
    }
  }
}

}  // namespace

void CpuOps::run(const GeluFwd& op, void*) {
  by_float(op.x.dtype, [&]<class T>() {
    T* y = flat<T>(op.y);
    const T* x = flat<T>(op.x);
    pool_.parallel_ranges(op.x.numel(), kChunkElements,
                          [&](int64_t begin, int64_t end) { gelu_fwd(y + begin, x + begin, end - begin); });
  });
}

void CpuOps::run(const GeluBwd& op, void*) {
  by_float(op.x.dtype, [&]<class T>() {
    T* dx = flat<T>(op.dx);
    const T *dy = flat<T>(op.dy), *x = flat<T>(op.x);
    pool_.parallel_ranges(op.x.numel(), kChunkElements, [&](int64_t begin, int64_t end) {
      gelu_bwd(dx + begin, dy + begin, x + begin, end - begin);
    });
  });
}

void CpuOps::run(const SwigluFwd& op, void*) {
  by_float(op.gu.dtype, [&]<class T>() {
    T* y = flat<T>(op.y);
    const T* gu = flat<T>(op.gu);
    pool_.parallel_ranges(op.y.rows(), row_grain(op.y.cols()),
                          [&](int64_t begin, int64_t end) { swiglu_fwd(y, gu, op.y.cols(), begin, end); });
  });
}

void CpuOps::run(const SwigluBwd& op, void*) {
  by_float(op.gu.dtype, [&]<class T>() {
    T* dgu = flat<T>(op.dgu);
    const T *dy = flat<T>(op.dy), *gu = flat<T>(op.gu);
    pool_.parallel_ranges(op.dy.rows(), row_grain(op.dy.cols()),
                          [&](int64_t begin, int64_t end) { swiglu_bwd(dgu, dy, gu, op.dy.cols(), begin, end); });
  });
}

}  // namespace athanor
