// GELU (tanh form), SwiGLU and other activations; sums scaled by learned scalars. Elementwise; GELU and SwiGLU use the
// logistic function, which needs a single exponential.
#include <cmath>

#include "cpu/amax.h"
#include "cpu/chunks.h"
#include "cpu/cpu_ops.h"
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

// dgate = dy up s (1 + gate (1 - s)), dup = dy gate s, s = logistic(gate). dgu may alias gu, and y may alias dy: an
// element is read before it is written. y: optional, receives gate s up.
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

template <int L>
struct Point {
  Vec<L> value, slope;
};

template <int L>
ATHANOR_INLINE Vec<L> positive(const Vec<L>& x) {  // NaN stays NaN
  const simd::Float<L> zero = {};
  return simd::each_part<L>([&](int i) ATHANOR_INLINE_LAMBDA { return x.part[i] < 0.0f ? zero : x.part[i]; });
}
template <int L>
ATHANOR_INLINE Vec<L> is_positive(const Vec<L>& x) {
  const simd::Float<L> zero = {}, one = zero + 1.0f;
  return simd::each_part<L>([&](int i) ATHANOR_INLINE_LAMBDA { return x.part[i] > 0.0f ? one : zero; });
}

// Probability that a standard normal number is below x, relative error below 5e-7; bell: exp(-x^2 / 2). The tail beyond
// |x| is bell t p(t), with t = 1 / (1 + 0.425 |x|) and p the polynomial of degree 9 with the smallest maximum error.
template <int L>
ATHANOR_INLINE simd::Float<L> normal_below(const simd::Float<L>& x, const simd::Float<L>& bell) {
  const simd::Float<L> negative = -1.0f * x, size = x > negative ? x : negative, t = 1.0f / (0.425f * size + 1.0f);
  simd::Float<L> p = t * 0x1.541694p-5f - 0x1.9ec454p-3f;
  p = p * t + 0x1.7f895p-2f;
  p = p * t - 0x1.1eb2cep-2f;
  p = p * t + 0x1.5baebp-6f;
  p = p * t - 0x1.846ffep-7f;
  p = p * t + 0x1.440612p-4f;
  p = p * t + 0x1.1c651cp-3f;
  p = p * t + 0x1.5b3d6ep-3f;
  p = p * t + 0x1.5b3d48p-3f;
  const simd::Float<L> tail = bell * t * p;
  return x > 0.0f ? 1.0f - tail : tail;
}

template <int L>
ATHANOR_INLINE Point<L> gelu_erf(const Vec<L>& x) {
  constexpr float kDensityAt0 = 0.3989422804f;  // 1 / sqrt(2 pi)
  const Vec<L> bell = simd::exp_nonpositive(-0.5f * x * x);
  const Vec<L> below =
      simd::each_part<L>([&](int i) ATHANOR_INLINE_LAMBDA { return normal_below<L>(x.part[i], bell.part[i]); });
  return {x * below, below + x * bell * kDensityAt0};
}

template <Activation F, int L>
ATHANOR_INLINE Point<L> activate(const Vec<L>& x) {
  if constexpr (F == Activation::gelu) {
    const Vec<L> x2 = x * x;
    const Logistic<L> s = logistic(x * (kGelu1 + kGelu3 * x2));
    return {x * s.of, s.of + x * s.of * s.of_minus * (kGelu1 + 3 * kGelu3 * x2)};
  } else if constexpr (F == Activation::gelu_erf) {
    return gelu_erf(x);
  } else if constexpr (F == Activation::silu) {
    const Logistic<L> s = logistic(x);
    return {x * s.of, s.of * (1.0f + x * s.of_minus)};
  } else if constexpr (F == Activation::relu) {
    return {positive(x), is_positive(x)};
  } else {
    const Vec<L> p = positive(x);
    return {p * p, 2.0f * p};
  }
}

template <Activation F>
struct ActivationForward {
  template <int L, class T>
  static ATHANOR_INLINE void run(T* y, const T* x, int64_t f, bool gated, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const T *gate = x + i * (gated ? 2 * f : f), *up = gate + f;
      simd::for_columns<L, T>(f, [&](auto at) ATHANOR_INLINE_LAMBDA {
        const Vec<L> v = activate<F, L>(at.load(gate)).value;
        at.store(y + i * f, gated ? v * at.load(up) : v);
      });
    }
  }
};

template <Activation F>
struct ActivationBackward {
  template <int L, class T>
  static ATHANOR_INLINE void run(T* dx, const T* dy, const T* x, int64_t f, bool gated, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i * (gated ? 2 * f : f);
      simd::for_columns<L, T>(f, [&](auto at) ATHANOR_INLINE_LAMBDA {
        const Point<L> p = activate<F, L>(at.load(x + row));
        const Vec<L> d = at.load(dy + i * f);
        if (!gated) return at.store(dx + row, d * p.slope);
        const Vec<L> up = at.load(x + row + f);
        at.store(dx + row, d * p.slope * up);
        at.store(dx + row + f, d * p.value);
      });
    }
  }
};

float scalar(const Tensor& t) {
  float x = 1;
  if (t) by_float(t.dtype, [&]<class T>() { x = to_float(*t.as<T>()); });
  return x;
}

struct ScaledForward {
  template <int L, class T>
  static ATHANOR_INLINE void run(T* y, const T* x, const T* z, float a, float b, int64_t n) {
    simd::for_columns<L, T>(n, [&](auto at) ATHANOR_INLINE_LAMBDA { at.store(y, a * at.load(x) + b * at.load(z)); });
  }
};

struct ScaledBackward {
  template <int L, class T>
  static ATHANOR_INLINE void run(T* dx, T* dz, const T* dy, float a, float b, int64_t n) {
    simd::for_columns<L, T>(n, [&](auto at) ATHANOR_INLINE_LAMBDA {
      const Vec<L> d = at.load(dy);
      at.store(dz, at.load(dz) + b * d);
      at.store(dx, a * d);
    });
  }
};

// Dot product in double: four partial sums, added in a fixed order.
template <class T>
double dot(const T* x, const T* y, int64_t n) {
  double sum[4] = {};
  for (int64_t i = 0; i < n; ++i) sum[i % 4] += double(to_float(x[i])) * double(to_float(y[i]));
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

// y = a x; y may alias x.
struct Scale {
  template <int L, class T>
  static ATHANOR_INLINE void run(T* y, const T* x, float a, int64_t n) {
    simd::for_columns<L, T>(n, [&](auto at) ATHANOR_INLINE_LAMBDA { at.store(y, a * at.load(x)); });
  }
};
struct ScaledAdd {  // y += a x
  template <int L, class T>
  static ATHANOR_INLINE void run(T* y, const T* x, float a, int64_t n) {
    simd::for_columns<L, T>(n, [&](auto at) ATHANOR_INLINE_LAMBDA { at.store(y, at.load(y) + a * at.load(x)); });
  }
};

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// The rows of an optional matrix; may be strided.
template <class T>
struct Rows {
  T* data = nullptr;
  int64_t stride = 0;
  explicit Rows(const Tensor& t) : data(t ? t.as<T>() : nullptr), stride(t ? t.stride() : 0) {}
  explicit operator bool() const { return data != nullptr; }
  T* at(int64_t row) const { return data + row * stride; }
};

void add_to(const Tensor& t, const double* parts, int64_t count) {
  if (!t) return;
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += parts[i];
  by_float(t.dtype, [&]<class T>() { *t.as<T>() = from_float<T>(float(double(to_float(*t.as<T>())) + sum)); });
}

}  // namespace

void CpuOps::run(const GeluFwd& op, void*) {
  by_float(op.x.dtype, [&]<class T>() {
    T* y = flat<T>(op.y);
    const T* x = flat<T>(op.x);
    const Amax amax(op.amax);
    pool_.parallel_ranges(op.x.numel(), kChunkElements, [&](int64_t begin, int64_t end) {
      simd::dispatch<GeluForward>(y + begin, x + begin, end - begin);
      amax.add(op.y, begin, end);
    });
  });
}

void CpuOps::run(const GeluBwd& op, void*) {
  by_float(op.x.dtype, [&]<class T>() {
    T* dx = flat<T>(op.dx);
    const T *dy = flat<T>(op.dy), *x = flat<T>(op.x);
    const Amax amax(op.amax);
    pool_.parallel_ranges(op.x.numel(), kChunkElements, [&](int64_t begin, int64_t end) {
      simd::dispatch<GeluBackward>(dx + begin, dy + begin, x + begin, end - begin);
      amax.add(op.dx, begin, end);
    });
  });
}

void CpuOps::run(const SwigluFwd& op, void*) {
  by_float(op.gu.dtype, [&]<class T>() {
    T* y = flat<T>(op.y);
    const T* gu = flat<T>(op.gu);
    const Amax amax(op.amax);
    pool_.parallel_ranges(op.y.rows(), row_grain(op.y.cols()), [&](int64_t begin, int64_t end) {
      simd::dispatch<SwigluForward>(y, gu, op.y.cols(), begin, end);
      amax.add_rows(op.y, begin, end);
    });
  });
}

void CpuOps::run(const SwigluBwd& op, void*) {
  by_float(op.gu.dtype, [&]<class T>() {
    T* dgu = flat<T>(op.dgu);
    T* y = op.y ? flat<T>(op.y) : nullptr;
    const T *dy = flat<T>(op.dy), *gu = flat<T>(op.gu);
    const Amax amax(op.amax);
    pool_.parallel_ranges(op.dy.rows(), row_grain(op.dy.cols()), [&](int64_t begin, int64_t end) {
      simd::dispatch<SwigluBackward>(dgu, y, dy, gu, op.dy.cols(), begin, end);
      amax.add_rows(op.dgu, begin, end);
    });
  });
}

void CpuOps::run(const ActivationFwd& op, void*) {
  by_float(op.x.dtype, [&]<class T>() {
    by_activation(op.f, [&]<Activation F>() {
      T* y = flat<T>(op.y);
      const T* x = flat<T>(op.x);
      const Amax amax(op.amax);
      pool_.parallel_ranges(op.y.rows(), row_grain(op.y.cols()), [&](int64_t begin, int64_t end) {
        simd::dispatch<ActivationForward<F>>(y, x, op.y.cols(), op.gated(), begin, end);
        amax.add_rows(op.y, begin, end);
      });
    });
  });
}

void CpuOps::run(const ActivationBwd& op, void*) {
  by_float(op.x.dtype, [&]<class T>() {
    by_activation(op.f, [&]<Activation F>() {
      T* dx = flat<T>(op.dx);
      const T *dy = flat<T>(op.dy), *x = flat<T>(op.x);
      const Amax amax(op.amax);
      pool_.parallel_ranges(op.dy.rows(), row_grain(op.dy.cols()), [&](int64_t begin, int64_t end) {
        simd::dispatch<ActivationBackward<F>>(dx, dy, x, op.dy.cols(), op.gated(), begin, end);
        amax.add_rows(op.dx, begin, end);
      });
    });
  });
}

void CpuOps::run(const ScaledSum& op, void*) {
  const float a = scalar(op.a), b = scalar(op.b);
  by_float(op.x.dtype, [&]<class T>() {
    T* y = flat<T>(op.y);
    const T *x = flat<T>(op.x), *z = flat<T>(op.z);
    pool_.parallel_ranges(op.x.numel(), kChunkElements, [&](int64_t begin, int64_t end) {
      simd::dispatch<ScaledForward>(y + begin, x + begin, z + begin, a, b, end - begin);
    });
  });
}

size_t CpuOps::scratch(const ScaledSumBwd& op) const {
  return size_t(2 * div_ceil(op.dy.numel(), kChunkElements)) * sizeof(double);
}
void CpuOps::run(const ScaledSumBwd& op, void* scratch) {
  const float a = scalar(op.a), b = scalar(op.b);
  const int64_t count = div_ceil(op.dy.numel(), kChunkElements);
  double *da = static_cast<double*>(scratch), *db = da + count;
  by_float(op.dy.dtype, [&]<class T>() {
    T *dx = flat<T>(op.dx), *dz = flat<T>(op.dz);
    const T *dy = flat<T>(op.dy), *x = flat<T>(op.x), *z = flat<T>(op.z);
    pool_.parallel_ranges(op.dy.numel(), kChunkElements, [&](int64_t begin, int64_t end) {
      const int64_t chunk = begin / kChunkElements, n = end - begin;
      if (op.a) da[chunk] = dot(dy + begin, x + begin, n);
      if (op.b) db[chunk] = dot(dy + begin, z + begin, n);
      simd::dispatch<ScaledBackward>(dx + begin, dz + begin, dy + begin, a, b, n);
    });
  });
  add_to(op.da, da, count);
  add_to(op.db, db, count);
}

void CpuOps::run(const GatedSum& op, void*) {
  const float a = scalar(op.a), b = scalar(op.b) * op.factor;
  const int64_t groups = op.groups(), width = op.y.cols() / groups;
  by_float(op.y.dtype, [&]<class T>() {
    const Rows<T> y(op.y), x(op.x), z(op.z), gate(op.gate);
    pool_.parallel_ranges(op.y.rows(), row_grain(op.y.cols()), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        for (int64_t g = 0; g < groups; ++g) {
          const int64_t c = g * width;
          const float of_z = gate ? float(b * sigmoid(to_float(gate.at(i)[g]))) : b;
          if (x && z)
            simd::dispatch<ScaledForward>(y.at(i) + c, x.at(i) + c, z.at(i) + c, a, of_z, width);
          else
            simd::dispatch<Scale>(y.at(i) + c, (x ? x : z).at(i) + c, x ? a : of_z, width);
        }
    });
  });
}

size_t CpuOps::scratch(const GatedSumBwd& op) const {
  return size_t(2 * div_ceil(op.dy.rows(), row_grain(op.dy.cols()))) * sizeof(double);
}
void CpuOps::run(const GatedSumBwd& op, void* scratch) {
  const float a = scalar(op.a), b = scalar(op.b);
  const int64_t groups = op.groups(), width = op.dy.cols() / groups, grain = row_grain(op.dy.cols());
  const int64_t count = div_ceil(op.dy.rows(), grain);
  double *da = static_cast<double*>(scratch), *db = da + count;
  by_float(op.dy.dtype, [&]<class T>() {
    const Rows<T> dx(op.dx), dz(op.dz), dgate(op.dgate), dy(op.dy), x(op.x), z(op.z), gate(op.gate);
    pool_.parallel_ranges(op.dy.rows(), grain, [&](int64_t begin, int64_t end) {
      double sum_a = 0, sum_b = 0;
      for (int64_t i = begin; i < end; ++i)
        for (int64_t g = 0; g < groups; ++g) {
          const int64_t c = g * width;
          const T* d = dy.at(i) + c;
          const double s = gate ? sigmoid(to_float(gate.at(i)[g])) : 1;
          const auto of_dy = float(b * op.factor * s);
          if (op.a) sum_a += dot(d, x.at(i) + c, width);
          if (op.b || gate) {
            const double of_z = dot(d, z.at(i) + c, width);
            sum_b += op.factor * s * of_z;
            if (gate) dgate.at(i)[g] = from_float<T>(float(b * op.factor * s * (1 - s) * of_z));
          }
          if (dz) simd::dispatch<ScaledAdd>(dz.at(i) + c, d, of_dy, width);
          if (dx) simd::dispatch<Scale>(dx.at(i) + c, d, a, width);
        }
      da[begin / grain] = sum_a, db[begin / grain] = sum_b;
    });
  });
  add_to(op.da, da, count);
  add_to(op.db, db, count);
}

}  // namespace athanor
