// A teacher's largest logits, and a student's loss against them, per row: see ops/top_logits.h. Sweeps over a row are
// vectorized and find it in the L2 cache; the code for its k top tokens is scalar, in double.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "cpu/chunks.h"
#include "cpu/cpu_ops.h"
#include "cpu/softcap.h"
#include "cpu/targets.h"
#include "cpu/vec.h"

namespace athanor {
namespace {

using simd::Vec;

constexpr int64_t kBlock = 2048;  // terms added in fp32; sums of blocks are added in double
constexpr float kInf = std::numeric_limits<float>::infinity();

// Sum over n columns of exp((x - base) inverse), x soft-capped; columns of -inf contribute 0.
template <int L, class T>
ATHANOR_INLINE double sum_of_exp(const T* x, int64_t n, float cap, float base, float inverse) {
  double sum = 0;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    Vec<L> part = simd::broadcast<L>(0);
    simd::for_columns<L, T>(std::min(kBlock, n - begin), [&](auto at) ATHANOR_INLINE_LAMBDA {
      const Vec<L> z = at.load(x + begin), y = (capped(z, cap) - base) * inverse;
      const Vec<L> there = simd::each_part<L>(
          [&](int i) ATHANOR_INLINE_LAMBDA { return z.part[i] == -kInf ? simd::Float<L>{} - kInf : y.part[i]; });
      part += simd::exp_nonpositive(at.or_else(there, -kInf));
    });
    sum += double(simd::sum(part));
  }
  return sum;
}

struct TopRows {
  int32_t* ids;
  float *values, *rest;
  int64_t k, vocab, padded;
  float inverse, softcap;
};

struct TopKernel {
  template <int L, class T>
  static ATHANOR_INLINE void run(const T* logits, const TopRows& a, int64_t begin, int64_t end) {
    std::vector<uint64_t> keys(size_t(a.vocab));
    std::vector<float> row(size_t(a.vocab));
    for (int64_t i = begin; i < end; ++i) {
      const T* z = logits + i * a.padded;
      for (int64_t c = 0; c < a.vocab; ++c) {
        const float x = to_float(z[c]) + 0.0f;  // -0 becomes 0
        row[size_t(c)] = x;
        keys[size_t(c)] = top_key(std::bit_cast<uint32_t>(x), std::isnan(x), uint32_t(c));
      }
      const int64_t sorted = std::min(a.k + 1, a.vocab);  // one more than k, for the first of the remaining tokens
      std::ranges::nth_element(keys, keys.begin() + sorted - 1, std::greater<>());
      std::sort(keys.begin(), keys.begin() + sorted, std::greater<>());
      const auto column = [&](int64_t j) { return int32_t(0xffffffffu - uint32_t(keys[size_t(j)])); };
      const float largest = row[size_t(column(0))];
      const double first = capped(largest, a.softcap);
      const float next = sorted > a.k ? float(capped(row[size_t(column(a.k))], a.softcap)) : -kInf;
      for (int64_t j = 0; j < a.k; ++j) {
        float& x = row[size_t(column(j))];
        a.ids[i * a.k + j] = column(j);
        a.values[i * a.k + j] = x == largest ? x - largest : float(capped(x, a.softcap) - first);
        x = -kInf;
      }
      a.rest[i] = next == -kInf ? -kInf : rest_of<L>(row, first, next, a);
    }
  }

  template <int L>
  static ATHANOR_INLINE float rest_of(const std::vector<float>& row, double first, float next, const TopRows& a) {
    const double sum = sum_of_exp<L>(row.data(), a.vocab, a.softcap, next, a.inverse);
    return float((double(next) - first) * double(a.inverse) + std::log(sum));
  }
};

struct PickRows {
  float *picked, *rest;
  const int32_t *ids, *targets;
  const float* max;
  VocabPart part;
  int64_t k, padded;
  float inverse, softcap;
};

// Writes -inf to the top tokens while the others are summed, then restores them.
struct PickKernel {
  template <int L, class T>
  static ATHANOR_INLINE void run(T* logits, const PickRows& a, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      T* z = logits + i * a.padded;
      float* picked = a.picked + i * a.k;
      a.rest[i] = 0;
      std::fill_n(picked, a.k, 0.0f);
      if (a.targets[i] < 0) continue;
      const auto each_here = [&](auto&& fn) ATHANOR_INLINE_LAMBDA {
        for (int64_t j = 0; j < a.k; ++j)
          if (const int32_t column = a.part.row(a.ids[i * a.k + j]); column >= 0) fn(picked[j], z[column]);
      };
      each_here([&](float& to, T& from) ATHANOR_INLINE_LAMBDA { to = to_float(from), from = from_float<T>(-kInf); });
      a.rest[i] = float(sum_of_exp<L>(z, a.part.count, a.softcap, base_of(a.max[i], a.softcap), a.inverse));
      each_here([&](float& from, T& to) ATHANOR_INLINE_LAMBDA { to = from_float<T>(from); });
    }
  }
};

struct CachedRows {
  float *losses, *divergences;
  const int32_t *targets, *ids;
  const float *values, *rest, *max, *sums, *at_target, *picked, *picked_rest;
  VocabPart part;
  int64_t k, padded;
  float scale;  // factor of the gradient
  DistillLoss kind;
  float temperature, inverse, ce_weight, z_loss, softcap;
};

// Both distributions of a row; the tokens outside ids are one event ("rest").
struct Pair {
  double base, log_cold, loss;             // student at temperature 1: max logit, log of the sum of exps, loss
  double log_p_sum, log_q_sum;             // at the temperature, relative to the maximum logit
  double log_p_rest, log_q_rest, between;  // log_q_rest is clamped from below
  double rest_share;                       // reverse_kl, uld: gradient of a token outside ids, over its probability
  double signed_q;                         // uld: sum of q times the sign of q - p
  double z_weight;                         // 2 z_loss log sum exp
  double log_p(float value, const CachedRows& a) const { return double(value) / double(a.temperature) - log_p_sum; }
  double log_q(float logit, const CachedRows& a) const {
    return (capped(logit, a.softcap) - base) / double(a.temperature) - log_q_sum;
  }
};

double weighted(double p, double difference) { return p > 0 ? p * difference : 0; }
double sign_of_difference(double q, double p) { return double(q > p) - double(q < p); }  // NaN: 0

// Computes the difference of the sorted probabilities of student and teacher.
void compare_sorted(Pair& r, double q_rest, const float* values, const float* picked, const CachedRows& a) {
  const double p_rest = std::exp(r.log_p_rest), rest_sign = sign_of_difference(q_rest, p_rest);
  r.between = std::abs(q_rest - p_rest), r.signed_q = rest_sign * q_rest;
  for (int64_t j = 0; j < a.k; ++j) {
    const double p = std::exp(r.log_p(values[j], a)), q = std::exp(r.log_q(picked[j], a));
    r.between += std::abs(q - p), r.signed_q += sign_of_difference(q, p) * q;
  }
  if (values[0] == -kInf) r.between = r.signed_q = 0;  // no teacher: p is NaN
  r.rest_share = rest_sign - r.signed_q;
}

// Gradient of the divergence with respect to a top token's logit.
double gradient_of_top(const Pair& r, double log_q, double log_p, DistillLoss kind) {
  const double q = std::exp(log_q);
  switch (kind) {
    case DistillLoss::kl:
      return q - std::exp(log_p);
    case DistillLoss::reverse_kl:
      return weighted(q, log_q - log_p - r.between);
    case DistillLoss::uld:
      break;
  }
  return q * (sign_of_difference(q, std::exp(log_p)) - r.signed_q);
}

Pair pair_of(int64_t i, const CachedRows& a) {
  const float *values = a.values + i * a.k, *picked = a.picked + i * a.k;
  Pair r{.base = double(base_of(a.max[i], a.softcap)), .log_cold = std::log(double(a.sums[i]))};
  r.loss = r.log_cold - double(a.at_target[i]);
  r.z_weight = 2 * double(a.z_loss) * (r.base + r.log_cold);
  double p_sum = std::exp(double(a.rest[i])), q_sum = double(a.picked_rest[i]);
  for (int64_t j = 0; j < a.k; ++j) p_sum += std::exp(r.log_p(values[j], a)), q_sum += std::exp(r.log_q(picked[j], a));
  r.log_p_sum = std::log(p_sum), r.log_q_sum = std::log(q_sum);
  r.log_p_rest = double(a.rest[i]) - r.log_p_sum;
  r.log_q_rest = std::log(std::max(double(a.picked_rest[i]), double(std::numeric_limits<float>::min()))) - r.log_q_sum;
  const double q_rest = double(a.picked_rest[i]) / q_sum;
  if (a.kind == DistillLoss::uld) {
    compare_sorted(r, q_rest, values, picked, a);
    return r;
  }
  const bool forward = a.kind == DistillLoss::kl;
  r.between = forward ? weighted(std::exp(r.log_p_rest), r.log_p_rest - r.log_q_rest)
                      : weighted(q_rest, r.log_q_rest - r.log_p_rest);
  for (int64_t j = 0; j < a.k; ++j) {
    const double log_p = r.log_p(values[j], a), log_q = r.log_q(picked[j], a);
    r.between += forward ? weighted(std::exp(log_p), log_p - log_q) : weighted(std::exp(log_q), log_q - log_p);
  }
  r.rest_share = a.picked_rest[i] > 0 ? r.log_q_rest - r.log_p_rest - r.between : 0;
  return r;
}

// Gradient of one logit; of_teacher: gradient of the divergence with respect to the logit over the temperature.
double gradient_of(const Pair& r, float logit, bool is_target, double of_teacher, const CachedRows& a) {
  const double log_softmax = capped(logit, a.softcap) - r.base - r.log_cold;
  const double hard = is_target ? std::expm1(-r.loss) : std::exp(log_softmax);
  return double(a.scale) * cap_slope(logit, a.softcap) *
         (double(a.temperature) * of_teacher + double(a.ce_weight) * hard + r.z_weight * std::exp(log_softmax));
}

struct CachedKernel {
  template <int L, class T>
  static ATHANOR_INLINE void run(T* logits, const CachedRows& a, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      T* z = logits + i * a.padded;
      if (a.targets[i] >= 0) {
        row<L>(z, i, a);
        continue;
      }
      a.losses[i] = a.divergences[i] = 0;
      std::memset(z, 0, size_t(a.padded) * sizeof(T));
    }
  }

  // Writes the gradient of all columns as if outside ids, then overwrites the target and the top tokens (which may
  // include the target).
  template <int L, class T>
  static ATHANOR_INLINE void row(T* z, int64_t i, const CachedRows& a) {
    const Pair r = pair_of(i, a);
    a.losses[i] = float(r.loss);
    a.divergences[i] = float(double(a.temperature) * double(a.temperature) * r.between);
    const int32_t target = a.part.row(a.targets[i]);
    const float at_target = target < 0 ? 0 : to_float(z[target]);
    const float base = float(r.base), log_sum = float(r.log_q_sum), shift = float(r.log_p_rest - r.log_q_rest);
    const float rest_share = float(r.rest_share);
    const bool forward = a.kind == DistillLoss::kl;
    const float factor = float((double(a.ce_weight) + r.z_weight) * std::exp(-r.log_cold));
    simd::for_columns<L, T>(a.part.count, [&](auto at) ATHANOR_INLINE_LAMBDA {
      const Vec<L> x = at.load(z), y = capped(x, a.softcap) - base, log_q = y * a.inverse - log_sum;
      const Vec<L> q = simd::exp_nonpositive(log_q);
      const Vec<L> of_teacher = forward ? q - simd::exp_nonpositive(log_q + shift) : q * rest_share;
      Vec<L> gradient = (of_teacher * a.temperature + simd::exp_nonpositive(y) * factor) * a.scale;
      if (a.softcap > 0) gradient = gradient * simd::tanh(x / a.softcap).slope;
      at.store(z, gradient);
    });
    if (target >= 0) {
      const double q = std::exp(r.log_q(at_target, a));
      const double of_teacher = forward ? q - std::exp(r.log_q(at_target, a) + double(shift)) : q * double(rest_share);
      z[target] = from_float<T>(float(gradient_of(r, at_target, true, of_teacher, a)));
    }
    for (int64_t j = 0; j < a.k; ++j) {
      const int32_t id = a.ids[i * a.k + j], column = a.part.row(id);
      if (column < 0) continue;
      const float logit = a.picked[i * a.k + j];
      const double of_teacher = gradient_of_top(r, r.log_q(logit, a), r.log_p(a.values[i * a.k + j], a), a.kind);
      z[column] = from_float<T>(float(gradient_of(r, logit, id == a.targets[i], of_teacher, a)));
    }
    std::memset(z + a.part.count, 0, size_t(a.padded - a.part.count) * sizeof(T));
  }
};

}  // namespace

void CpuOps::run(const TopLogits& op, void*) {
  const TopRows rows{.ids = flat<int32_t>(op.ids),
                     .values = flat<float>(op.values),
                     .rest = flat<float>(op.rest),
                     .k = op.ids.cols(),
                     .vocab = op.vocab,
                     .padded = op.logits.cols(),
                     .inverse = 1 / op.temperature,
                     .softcap = op.softcap};
  by_float(op.logits.dtype, [&]<class T>() {
    const T* logits = flat<T>(op.logits);
    pool_.parallel_ranges(op.logits.rows(), row_grain(rows.padded),
                          [&](int64_t begin, int64_t end) { simd::dispatch<TopKernel>(logits, rows, begin, end); });
  });
}

void CpuOps::run(const PickLogits& op, void*) {
  const PickRows rows{.picked = flat<float>(op.picked),
                      .rest = flat<float>(op.picked_rest),
                      .ids = flat<int32_t>(op.ids),
                      .targets = flat<int32_t>(op.targets),
                      .max = flat<float>(op.max),
                      .part = op.part,
                      .k = op.ids.cols(),
                      .padded = op.logits.cols(),
                      .inverse = 1 / op.temperature,
                      .softcap = op.softcap};
  by_float(op.logits.dtype, [&]<class T>() {
    T* logits = flat<T>(op.logits);
    pool_.parallel_ranges(op.logits.rows(), row_grain(rows.padded),
                          [&](int64_t begin, int64_t end) { simd::dispatch<PickKernel>(logits, rows, begin, end); });
  });
}

void CpuOps::run(const CachedDistilledCrossEntropy& op, void*) {
  require_targets(op.kName, op.targets, op.part.total);
  const int64_t n = op.logits.rows();
  const float* sums = flat<float>(op.sums);
  const CachedRows rows{.losses = flat<float>(op.losses),
                        .divergences = flat<float>(op.divergences),
                        .targets = flat<int32_t>(op.targets),
                        .ids = flat<int32_t>(op.ids),
                        .values = flat<float>(op.values),
                        .rest = flat<float>(op.rest),
                        .max = flat<float>(op.max),
                        .sums = sums,
                        .at_target = sums + n,
                        .picked = flat<float>(op.picked),
                        .picked_rest = flat<float>(op.picked_rest),
                        .part = op.part,
                        .k = op.ids.cols(),
                        .padded = op.logits.cols(),
                        .scale = *op.scale.as<float>() * op.inv_count,
                        .kind = op.kind,
                        .temperature = op.temperature,
                        .inverse = 1 / op.temperature,
                        .ce_weight = op.ce_weight,
                        .z_loss = op.z_loss,
                        .softcap = op.softcap};
  by_float(op.logits.dtype, [&]<class T>() {
    T* logits = flat<T>(op.logits);
    pool_.parallel_ranges(n, row_grain(rows.padded),
                          [&](int64_t begin, int64_t end) { simd::dispatch<CachedKernel>(logits, rows, begin, end); });
  });
}

}  // namespace athanor
