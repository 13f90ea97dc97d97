// Biases of experts: the formulas of ops/biased_experts.h.
#include <algorithm>

#include "cpu/chunks.h"
#include "cpu/cpu_ops.h"
#include "cpu/indices.h"
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

}  // namespace athanor
