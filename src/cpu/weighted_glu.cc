// Gated activations of the experts' sorted rows, times the router's weights: SwiGLU (ops/moe.h) and GPT-OSS's clamped
// one (ops/biased_experts.h). Both are y = g sigmoid(x) u, with other g, x and u of the inputs gate and up.
#include "cpu/chunks.h"
#include "cpu/cpu_ops.h"
#include "cpu/indices.h"
#include "cpu/logistic.h"
#include "cpu/vec.h"

namespace athanor {
namespace {

using simd::Vec;

template <int L>
struct Factors {
  Vec<L> g, x, u;
};
template <int L>
struct GateAndUp {
  Vec<L> gate, up;
};

struct Swiglu {
  template <int L>
  ATHANOR_INLINE Factors<L> factors(const GateAndUp<L>& in) const {
    return {in.gate, in.gate, in.up};
  }
  template <int L>
  ATHANOR_INLINE GateAndUp<L> gradient(const GateAndUp<L>& /*in*/, const GateAndUp<L>& d) const {
    return d;
  }
};

struct ClampedGlu {
  float limit;
  template <int L>
  ATHANOR_INLINE GateAndUp<L> clamped(const GateAndUp<L>& in) const {
    const auto at_most = [&](const Vec<L>& x) ATHANOR_INLINE_LAMBDA {
      return simd::each_part<L>(
          [&](int i) ATHANOR_INLINE_LAMBDA { return x.part[i] > limit ? simd::Float<L>{} + limit : x.part[i]; });
    };
    const Vec<L> up = at_most(in.up);
    return {at_most(in.gate), simd::each_part<L>([&](int i) ATHANOR_INLINE_LAMBDA {
              return up.part[i] < -limit ? simd::Float<L>{} - limit : up.part[i];
            })};
  }
  template <int L>
  ATHANOR_INLINE Factors<L> factors(const GateAndUp<L>& in) const {
    const GateAndUp<L> c = clamped(in);
    return {c.gate, ClampedGluFwd::kSteepness * c.gate, c.up + 1.0f};
  }
  // Gradients are zero where clamping changed the value.
  template <int L>
  ATHANOR_INLINE GateAndUp<L> gradient(const GateAndUp<L>& in, const GateAndUp<L>& d) const {
    const auto where_same = [](const Vec<L>& a, const Vec<L>& b, const Vec<L>& x) ATHANOR_INLINE_LAMBDA {
      return simd::each_part<L>(
          [&](int i) ATHANOR_INLINE_LAMBDA { return a.part[i] == b.part[i] ? x.part[i] : simd::Float<L>{}; });
    };
    const GateAndUp<L> c = clamped(in);
    return {where_same(c.gate, in.gate, d.gate), where_same(c.up, in.up, d.up)};
  }
};

template <class T, class Glu>
struct WeightedRows {
  T *dgu, *y;  // dgu: backward only
  const T *dy, *gu;
  float* dweights;
  const float* weights;
  const int32_t* slots;
  int64_t f;
  Glu glu;
};
struct WeightedForward {
  template <int L, class T, class Glu>
  static ATHANOR_INLINE void run(const WeightedRows<T, Glu>& a, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const T *gate = a.gu + i * 2 * a.f, *up = gate + a.f;
      const float weight = a.weights[a.slots[i]];
      simd::for_columns<L, T>(a.f, [&](auto at) ATHANOR_INLINE_LAMBDA {
        const Factors<L> v = a.glu.factors(GateAndUp<L>{at.load(gate), at.load(up)});
        at.store(a.y + i * a.f, v.g * logistic(v.x).of * v.u * weight);
      });
    }
  }
};
// Each element is read before it is written, since dgu may alias gu, and y dy.
struct WeightedBackward {
  template <int L, class T, class Glu>
  static ATHANOR_INLINE void run(const WeightedRows<T, Glu>& a, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const T *gate = a.gu + i * 2 * a.f, *up = gate + a.f;
      T *dgate = a.dgu + i * 2 * a.f, *dup = dgate + a.f;
      const float weight = a.weights[a.slots[i]];
      Vec<L> sum = simd::broadcast<L>(0);
      simd::for_columns<L, T>(a.f, [&](auto at) ATHANOR_INLINE_LAMBDA {
        const GateAndUp<L> in{at.load(gate), at.load(up)};
        const Vec<L> d = at.load(a.dy + i * a.f);
        const Factors<L> v = a.glu.factors(in);
        const Logistic<L> s = logistic(v.x);
        const Vec<L> y = v.g * s.of * v.u, ds = d * weight * s.of;
        sum += d * y;
        const GateAndUp<L> gradient = a.glu.gradient(in, GateAndUp<L>{ds * v.u * (1.0f + v.x * s.of_minus), ds * v.g});
        at.store(dgate, gradient.gate);
        at.store(dup, gradient.up);
        at.store(a.y + i * a.f, y * weight);
      });
      a.dweights[a.slots[i]] = simd::sum(sum);
    }
  }
};

template <class Glu, class Op>
void run_forward(ThreadPool& pool, const Op& op, Glu glu) {
  const int32_t* slots = checked_indices(op.kName, "slots", op.slots, op.weights.numel());
  by_float(op.gu.dtype, [&]<class T>() {
    const WeightedRows<T, Glu> a{nullptr, flat<T>(op.y), nullptr, flat<T>(op.gu), nullptr, flat<float>(op.weights),
                                 slots,   op.y.cols(),   glu};
    pool.parallel_ranges(op.y.rows(), row_grain(a.f),
                         [&](int64_t begin, int64_t end) { simd::dispatch<WeightedForward>(a, begin, end); });
  });
}

template <class Glu, class Op>
void run_backward(ThreadPool& pool, const Op& op, Glu glu) {
  const int32_t* slots = checked_indices(op.kName, "slots", op.slots, op.weights.numel());
  by_float(op.gu.dtype, [&]<class T>() {
    const WeightedRows<T, Glu> a{flat<T>(op.dgu),
                                 flat<T>(op.y),
                                 flat<T>(op.dy),
                                 flat<T>(op.gu),
                                 flat<float>(op.dweights),
                                 flat<float>(op.weights),
                                 slots,
                                 op.dy.cols(),
                                 glu};
    pool.parallel_ranges(op.dy.rows(), row_grain(a.f),
                         [&](int64_t begin, int64_t end) { simd::dispatch<WeightedBackward>(a, begin, end); });
  });
}

}  // namespace

void CpuOps::run(const WeightedSwigluFwd& op, void*) { run_forward(pool_, op, Swiglu{}); }
void CpuOps::run(const WeightedSwigluBwd& op, void*) { run_backward(pool_, op, Swiglu{}); }
void CpuOps::run(const ClampedGluFwd& op, void*) { run_forward(pool_, op, ClampedGlu{op.limit}); }
void CpuOps::run(const ClampedGluBwd& op, void*) { run_backward(pool_, op, ClampedGlu{op.limit}); }

}  // namespace athanor
