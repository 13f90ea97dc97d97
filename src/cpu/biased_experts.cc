// Biases of experts and the clamped activation of GPT-OSS: the formulas of ops/biased_experts.h.
#include <algorithm>

#include "cpu/chunks.h"
#include "cpu/cpu_ops.h"
#include "cpu/indices.h"
#include "cpu/logistic.h"
#include "cpu/vec.h"

namespace athanor {
namespace {

using simd::Vec;

struct RowWeights {
  const float* weights;  // null: all 1
  const int32_t* slots;
  ATHANOR_INLINE float of(int64_t row) const { return weights ? weights[slots[row]] : 1.0f; }
};

RowWeights row_weights(const char* op, const Tensor& weights, const Tensor& slots) {
  if (!weights) return {nullptr, nullptr};
  return {flat<float>(weights), checked_indices(op, "slots", slots, weights.numel())};
}

// First rows of the experts, checked.
const int32_t* first_rows(const char* op, const Tensor& offsets, int64_t rows) {
  const int32_t* first = checked_indices(op, "offsets", offsets, rows + 1);
  CHECK(first[0] == 0 && std::is_sorted(first, first + offsets.numel()), op, ".offsets: falling, or not from 0");
  return first;
}

template <class T>
struct BiasedRows {
  T* x;  // forward
  const T *dx, *bias;
  const int32_t* first;
  int64_t experts, cols;
  RowWeights weights;
  float* dweights;
  int64_t expert_of(int64_t row) const { return std::upper_bound(first, first + experts + 1, row) - first - 1; }
};

struct BiasRows {
  template <int L, class T>
  static ATHANOR_INLINE void run(const BiasedRows<T>& a, int64_t expert, int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      while (r >= a.first[expert + 1]) ++expert;
      const float weight = a.weights.of(r);
      simd::for_columns<L, T>(a.cols, [&](auto at) ATHANOR_INLINE_LAMBDA {
        at.store(a.x + r * a.cols, at.load(a.x + r * a.cols) + at.load(a.bias + expert * a.cols) * weight);
      });
    }
  }
};

struct BiasGradientOfExpert {
  template <int L, class T, class G>
  static ATHANOR_INLINE void run(const BiasedRows<T>& a, G* dbias, int64_t expert) {
    simd::for_columns<L, T>(a.cols, [&](auto at) ATHANOR_INLINE_LAMBDA {
      Vec<L> sum = simd::broadcast<L>(0);
      for (int64_t r = a.first[expert]; r < a.first[expert + 1]; ++r)
        sum += at.load(a.dx + r * a.cols) * a.weights.of(r);
      at.store(dbias + expert * a.cols, at.load(dbias + expert * a.cols) + sum);
    });
  }
};

struct WeightGradients {
  template <int L, class T>
  static ATHANOR_INLINE void run(const BiasedRows<T>& a, int64_t expert, int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      while (r >= a.first[expert + 1]) ++expert;
      Vec<L> sum = simd::broadcast<L>(0);
      simd::for_columns<L, T>(a.cols, [&](auto at) ATHANOR_INLINE_LAMBDA {
        sum += at.load(a.dx + r * a.cols) * at.load(a.bias + expert * a.cols);
      });
      a.dweights[a.weights.slots[r]] += simd::sum(sum);
    }
  }
};

}  // namespace

void CpuOps::run(const AddExpertBias& op, void*) {
  const int32_t* first = first_rows(op.kName, op.offsets, op.x.rows());
  const RowWeights weights = row_weights(op.kName, op.weights, op.slots);
  by_float(op.x.dtype, [&]<class T>() {
    const BiasedRows<T> a{flat<T>(op.x), nullptr, flat<T>(op.bias), first, op.experts(), op.x.cols(), weights, nullptr};
    pool_.parallel_ranges(first[op.experts()], row_grain(a.cols), [&](int64_t begin, int64_t end) {
      simd::dispatch<BiasRows>(a, a.expert_of(begin), begin, end);
    });
  });
}

void CpuOps::run(const AddExpertBiasBwd& op, void*) {
  const int32_t* first = first_rows(op.kName, op.offsets, op.dx.rows());
  const RowWeights weights = row_weights(op.kName, op.weights, op.slots);
  by_float(op.dx.dtype, [&]<class T>() {
    const BiasedRows<T> a{
        nullptr,      flat<T>(op.dx), flat<T>(op.bias), first,
        op.experts(), op.dx.cols(),   weights,          op.weights ? flat<float>(op.dweights) : nullptr};
    if (op.dbias)
      by_float(op.dbias.dtype, [&]<class G>() {
        pool_.parallel_for(a.experts,
                           [&](int64_t expert) { simd::dispatch<BiasGradientOfExpert>(a, flat<G>(op.dbias), expert); });
      });
    if (op.weights)
      pool_.parallel_ranges(first[op.experts()], row_grain(a.cols), [&](int64_t begin, int64_t end) {
        simd::dispatch<WeightGradients>(a, a.expert_of(begin), begin, end);
      });
  });
}

namespace {

template <int L>
ATHANOR_INLINE Vec<L> at_most(const Vec<L>& x, float limit) {
  return simd::each_part<L>(
      [&](int i) ATHANOR_INLINE_LAMBDA { return x.part[i] > limit ? simd::Float<L>{} + limit : x.part[i]; });
}
template <int L>
ATHANOR_INLINE Vec<L> at_least(const Vec<L>& x, float limit) {
  return simd::each_part<L>(
      [&](int i) ATHANOR_INLINE_LAMBDA { return x.part[i] < limit ? simd::Float<L>{} + limit : x.part[i]; });
}
// x where a clamped value equals the original one, else 0.
template <int L>
ATHANOR_INLINE Vec<L> where_same(const Vec<L>& clamped, const Vec<L>& original, const Vec<L>& x) {
  return simd::each_part<L>(
      [&](int i) ATHANOR_INLINE_LAMBDA { return clamped.part[i] == original.part[i] ? x.part[i] : simd::Float<L>{}; });
}

template <class T>
struct ClampedRows {
  T *dgu, *y;  // dgu: backward only
  const T *dy, *gu;
  float* dweights;
  const float* weights;
  const int32_t* slots;
  int64_t f;
  float limit;
};
struct ClampedForward {
  template <int L, class T>
  static ATHANOR_INLINE void run(const ClampedRows<T>& a, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const T *gate = a.gu + i * 2 * a.f, *up = gate + a.f;
      const float weight = a.weights[a.slots[i]];
      simd::for_columns<L, T>(a.f, [&](auto at) ATHANOR_INLINE_LAMBDA {
        const Vec<L> g = at_most(at.load(gate), a.limit), u = at_least(at_most(at.load(up), a.limit), -a.limit);
        at.store(a.y + i * a.f, (u + 1.0f) * (g * logistic(ClampedGluFwd::kSteepness * g).of) * weight);
      });
    }
  }
};
// Each element is read before it is written, since dgu may alias gu, and y dy.
struct ClampedBackward {
  template <int L, class T>
  static ATHANOR_INLINE void run(const ClampedRows<T>& a, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const T *gate = a.gu + i * 2 * a.f, *up = gate + a.f;
      T *dgate = a.dgu + i * 2 * a.f, *dup = dgate + a.f;
      const float weight = a.weights[a.slots[i]];
      Vec<L> sum = simd::broadcast<L>(0);
      simd::for_columns<L, T>(a.f, [&](auto at) ATHANOR_INLINE_LAMBDA {
        const Vec<L> gate_in = at.load(gate), up_in = at.load(up), d = at.load(a.dy + i * a.f);
        const Vec<L> g = at_most(gate_in, a.limit), u = at_least(at_most(up_in, a.limit), -a.limit);
        const Logistic<L> s = logistic(ClampedGluFwd::kSteepness * g);
        const Vec<L> y = (u + 1.0f) * (g * s.of), ds = d * weight * s.of;
        sum += d * y;
        at.store(dgate, where_same(g, gate_in, ds * (u + 1.0f) * (1.0f + ClampedGluFwd::kSteepness * g * s.of_minus)));
        at.store(dup, where_same(u, up_in, ds * g));
        at.store(a.y + i * a.f, y * weight);
      });
      a.dweights[a.slots[i]] = simd::sum(sum);
    }
  }
};

}  // namespace

void CpuOps::run(const ClampedGluFwd& op, void*) {
  const int32_t* slots = checked_indices(op.kName, "slots", op.slots, op.weights.numel());
  by_float(op.gu.dtype, [&]<class T>() {
    const ClampedRows<T> a{nullptr, flat<T>(op.y), nullptr, flat<T>(op.gu), nullptr, flat<float>(op.weights),
                           slots,   op.y.cols(),   op.limit};
    pool_.parallel_ranges(op.y.rows(), row_grain(a.f),
                          [&](int64_t begin, int64_t end) { simd::dispatch<ClampedForward>(a, begin, end); });
  });
}

void CpuOps::run(const ClampedGluBwd& op, void*) {
  const int32_t* slots = checked_indices(op.kName, "slots", op.slots, op.weights.numel());
  by_float(op.gu.dtype, [&]<class T>() {
    const ClampedRows<T> a{
        flat<T>(op.dgu),         flat<T>(op.y), flat<T>(op.dy), flat<T>(op.gu), flat<float>(op.dweights),
        flat<float>(op.weights), slots,         op.dy.cols(),   op.limit};
    pool_.parallel_ranges(op.dy.rows(), row_grain(a.f),
                          [&](int64_t begin, int64_t end) { simd::dispatch<ClampedBackward>(a, begin, end); });
  });
}

}  // namespace athanor
