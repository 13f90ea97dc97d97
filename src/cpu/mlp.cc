// GELU (tanh form) and SwiGLU. Element-wise; written with the logistic function, which needs one exponential.
#include "cpu/chunks.h"
#include "cpu/cpu_ops.h"
#include "cpu/largest.h"
#include "cpu/logistic.h"
#include "cpu/vec.h"

namespace athanor {
namespace {

using simd::Vec;

// 0.5 (1 + tanh(u)) = logistic(2u), so gelu(x) = x logistic(x (k1 + k3 x^2)).
constexpr float kGelu1 = 1.5957691216057308f;    // 2 sqrt(2/pi)
constexpr float kGelu3 = 0.071354816272600276f;  // 0.044715 * kGelu1

struct GeluForward {
  template <int L, class T>
  static ATHANOR_INLINE void run(T* y, const T* x, int64_t n) {
    simd::for_columns<L, T>(n, [&](auto at) ATHANOR_INLINE_LAMBDA {
      const Vec<L> v = at.load(x);
      at.store(y, v * logistic(v * (kGelu1 + kGelu3 * (v * v))).of);
    });
  }
};

// d gelu / dx = s + x s (1 - s) (k1 + 3 k3 x^2), s = logistic(...). NaN where x^2 overflows.
struct GeluBackward {
  template <int L, class T>
  static ATHANOR_INLINE void run(T* dx, const T* dy, const T* x, int64_t n) {
    simd::for_columns<L, T>(n, [&](auto at) ATHANOR_INLINE_LAMBDA {
      const Vec<L> v = at.load(x), v2 = v * v;
      const Logistic<L> s = logistic(v * (kGelu1 + kGelu3 * v2));
      at.store(dx, at.load(dy) * (s.of + v * s.of * s.of_minus * (kGelu1 + 3 * kGelu3 * v2)));
    });
  }
};

struct SwigluForward {
  template <int L, class T>
  static ATHANOR_INLINE void run(T* y, const T* gu, int64_t f, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const T *gate = gu + i * 2 * f, *up = gate + f;
      simd::for_columns<L, T>(f, [&](auto at) ATHANOR_INLINE_LAMBDA {
        const Vec<L> g = at.load(gate);
        at.store(y + i * f, g * logistic(g).of * at.load(up));
      });
    }
  }
};

// dgate = dy up s (1 + gate (1 - s)), dup = dy gate s, s = logistic(gate). dgu may be gu, and y dy: an element is read
// before it is written. y: none, or gate s up.
struct SwigluBackward {
  template <int L, class T>
  static ATHANOR_INLINE void run(T* dgu, T* y, const T* dy, const T* gu, int64_t f, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const T *gate = gu + i * 2 * f, *up = gate + f;
      T *dgate = dgu + i * 2 * f, *dup = dgate + f;
      simd::for_columns<L, T>(f, [&](auto at) ATHANOR_INLINE_LAMBDA {
        const Vec<L> g = at.load(gate), u = at.load(up), d = at.load(dy + i * f);
        const Logistic<L> s = logistic(g);
        const Vec<L> ds = d * s.of;
        at.store(dgate, ds * u * (1.0f + g * s.of_minus));
        at.store(dup, ds * g);
        if (y) at.store(y + i * f, g * s.of * u);
      });
    }
  }
};

}  // namespace

void CpuOps::run(const GeluFwd& op, void*) {
  by_float(op.x.dtype, [&]<class T>() {
    T* y = flat<T>(op.y);
    const T* x = flat<T>(op.x);
    const Largest largest(op.amax);
    pool_.parallel_ranges(op.x.numel(), kChunkElements, [&](int64_t begin, int64_t end) {
      simd::dispatch<GeluForward>(y + begin, x + begin, end - begin);
      largest.add(op.y, begin, end);
    });
  });
}

void CpuOps::run(const GeluBwd& op, void*) {
  by_float(op.x.dtype, [&]<class T>() {
    T* dx = flat<T>(op.dx);
    const T *dy = flat<T>(op.dy), *x = flat<T>(op.x);
    const Largest largest(op.amax);
    pool_.parallel_ranges(op.x.numel(), kChunkElements, [&](int64_t begin, int64_t end) {
      simd::dispatch<GeluBackward>(dx + begin, dy + begin, x + begin, end - begin);
      largest.add(op.dx, begin, end);
    });
  });
}

void CpuOps::run(const SwigluFwd& op, void*) {
  by_float(op.gu.dtype, [&]<class T>() {
    T* y = flat<T>(op.y);
    const T* gu = flat<T>(op.gu);
    const Largest largest(op.amax);
    pool_.parallel_ranges(op.y.rows(), row_grain(op.y.cols()), [&](int64_t begin, int64_t end) {
      simd::dispatch<SwigluForward>(y, gu, op.y.cols(), begin, end);
      largest.add_rows(op.y, begin, end);
    });
  });
}

void CpuOps::run(const SwigluBwd& op, void*) {
  by_float(op.gu.dtype, [&]<class T>() {
    T* dgu = flat<T>(op.dgu);
    T* y = op.y ? flat<T>(op.y) : nullptr;
    const T *dy = flat<T>(op.dy), *gu = flat<T>(op.gu);
    const Largest largest(op.amax);
    pool_.parallel_ranges(op.dy.rows(), row_grain(op.dy.cols()), [&](int64_t begin, int64_t end) {
      simd::dispatch<SwigluBackward>(dgu, y, dy, gu, op.dy.cols(), begin, end);
      largest.add_rows(op.dgu, begin, end);
    });
  });
}

}  // namespace athanor
