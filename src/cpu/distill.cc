// Cross-entropy and distillation loss per row of logits: one sweep for the sums of both softmaxes, one for the
// divergence, and one that writes the gradient, while both rows are in the L2 cache. With a sharded vocabulary,
// DistillSums computes the sums of one shard in one sweep.
#include <cmath>
#include <cstring>
#include <limits>

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

// Sums over all vocabulary shards, per row; null if this rank has the whole vocabulary.
struct SumsOfParts {
  VocabPart part = {};
  const float *max = nullptr, *cold_sums = nullptr, *at_target = nullptr, *teacher_max = nullptr;
  const float *y_sums = nullptr, *u_sums = nullptr, *cross = nullptr;  // rows of DistillSums::sums
};

struct DistillRows {
  float *losses, *divergences;
  const int32_t* targets;
  SumsOfParts all;
  int64_t vocab, padded, teacher_padded;
  float scale;  // factor of the gradient
  bool forward;
  float temperature, inv_temperature, ce_weight, z_loss, softcap, teacher_softcap;
};

// a * b where a > 0, else 0, even if b is not finite.
template <int L>
ATHANOR_INLINE Vec<L> weighted(const Vec<L>& a, const Vec<L>& b) {
  return simd::each_part<L>(
      [&](int i) ATHANOR_INLINE_LAMBDA { return a.part[i] > 0.0f ? a.part[i] * b.part[i] : simd::Float<L>{}; });
}

// Softmax of a row of logits at a temperature, represented by the logarithm of its sum.
struct Softmax {
  float base = 0;       // maximum logit, capped
  float cap = 0;        // soft-cap of the logits; 0 = none
  float inverse = 1;    // 1 / temperature
  float log_sum = 0;    // log of the sum of exp((x - base) inverse)
  double cold_sum = 0;  // sum of exp(x - base), i.e. at temperature 1

  template <int L>
  ATHANOR_INLINE Vec<L> log_of(const Vec<L>& x) const {
    return (capped(x, cap) - base) * inverse - log_sum;
  }
  double log_of(float x) const { return (capped(x, cap) - double(base)) * double(inverse) - double(log_sum); }
};

// Sum of term(column block) over a row, in double between blocks.
template <int L, class T, class Term>
ATHANOR_INLINE double sum_over(int64_t n, const Term& term) {
  double sum = 0;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    Vec<L> part = simd::broadcast<L>(0);
    simd::for_columns<L, T>(std::min(kBlock, n - begin),
                            [&](auto at) ATHANOR_INLINE_LAMBDA { part += term(at, begin); });
    sum += double(simd::sum(part));
  }
  return sum;
}

template <int L, class T>
ATHANOR_INLINE Softmax softmax_of(const T* x, int64_t n, float cap, float inverse) {
  Vec<L> most = simd::broadcast<L>(-kInf);
  simd::for_columns<L, T>(
      n, [&](auto at) ATHANOR_INLINE_LAMBDA { most = simd::max(at.or_else(at.load(x), -kInf), most); });
  Softmax s{.base = base_of(simd::max(most), cap), .cap = cap, .inverse = inverse};
  const auto sum = [&](float factor) ATHANOR_INLINE_LAMBDA {
    return sum_over<L, T>(n, [&](auto at, int64_t begin) ATHANOR_INLINE_LAMBDA {
      return simd::exp_nonpositive(at.or_else((capped(at.load(x + begin), cap) - s.base) * factor, -kInf));
    });
  };
  s.cold_sum = sum(1);
  s.log_sum = float(std::log(inverse == 1 ? s.cold_sum : sum(inverse)));
  return s;
}

struct DistillKernel {
  template <int L, class T>
  static ATHANOR_INLINE void run(T* logits, const T* teacher, const DistillRows& a, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      T* z = logits + i * a.padded;
      if (a.targets[i] >= 0) {
        row<L>(z, teacher + i * a.teacher_padded, i, a);
        continue;
      }
      a.losses[i] = a.divergences[i] = 0;
      std::memset(z, 0, size_t(a.padded) * sizeof(T));
    }
  }

  template <int L, class T>
  static ATHANOR_INLINE void row(T* z, const T* v, int64_t i, const DistillRows& a) {
    if (a.all.part) return row_of<L>(z, v, i, a, of_all_parts(i, a));
    Both b{.target = a.targets[i],
           .q = softmax_of<L>(z, a.vocab, a.softcap, a.inv_temperature),
           .p = softmax_of<L>(v, a.vocab, a.teacher_softcap, a.inv_temperature)};
    b.between = sum_over<L, T>(a.vocab, [&](auto at, int64_t from) ATHANOR_INLINE_LAMBDA {
      const Vec<L> log_q = b.q.log_of(at.load(z + from)), log_p = b.p.log_of(at.load(v + from));
      const Vec<L> term = a.forward ? weighted(simd::exp_nonpositive(log_p), log_p - log_q)
                                    : weighted(simd::exp_nonpositive(log_q), log_q - log_p);
      return at.or_else(term, 0);
    });
    b.at_target = capped(to_float(z[b.target]), a.softcap) - double(b.q.base);
    row_of<L>(z, v, i, a, b);
  }

  // Quantities of a row that its gradient needs.
  struct Both {
    int32_t target;        // the target's column; negative if another shard has it
    Softmax q, p;          // student's and teacher's softmax
    double between = 0;    // divergence / temperature^2
    double at_target = 0;  // the target's logit, relative to q.base
  };
  static Both of_all_parts(int64_t i, const DistillRows& a) {
    const SumsOfParts& all = a.all;
    const double log_y = std::log(double(all.y_sums[i])), log_u = std::log(double(all.u_sums[i]));
    return {.target = all.part.row(a.targets[i]),
            .q = {.base = base_of(all.max[i], a.softcap),
                  .cap = a.softcap,
                  .inverse = a.inv_temperature,
                  .log_sum = float(log_y),
                  .cold_sum = double(all.cold_sums[i])},
            .p = {.base = base_of(all.teacher_max[i], a.teacher_softcap),
                  .cap = a.teacher_softcap,
                  .inverse = a.inv_temperature,
                  .log_sum = float(log_u)},
            .between = a.forward ? double(all.cross[i]) / double(all.u_sums[i]) - log_u + log_y
                                 : double(all.cross[i]) / double(all.y_sums[i]) - log_y + log_u,
            .at_target = double(all.at_target[i])};
  }

  template <int L, class T>
  static ATHANOR_INLINE void row_of(T* z, const T* v, int64_t i, const DistillRows& a, const Both& b) {
    const Softmax &q = b.q, &p = b.p;
    const int32_t target = b.target;
    const double between = b.between;
    const double log_cold = std::log(q.cold_sum), loss = log_cold - b.at_target;
    a.losses[i] = float(loss);
    a.divergences[i] = float(double(a.temperature) * double(a.temperature) * between);
    const double z_weight = 2 * double(a.z_loss) * (double(q.base) + log_cold);
    const float factor = float((double(a.ce_weight) + z_weight) / q.cold_sum);
    const float of_target = target < 0 ? 0 : float(gradient_at(q, p, z[target], v[target], between, loss, z_weight, a));
    const float divergence = float(between);
    simd::for_columns<L, T>(a.vocab, [&](auto at) ATHANOR_INLINE_LAMBDA {
      const Vec<L> x = at.load(z), log_q = q.log_of(x), log_p = p.log_of(at.load(v));
      const Vec<L> soft = simd::exp_nonpositive(log_q);
      const Vec<L> of_teacher =
          a.forward ? soft - simd::exp_nonpositive(log_p) : weighted(soft, log_q - log_p - divergence);
      const Vec<L> cold = simd::exp_nonpositive(capped(x, a.softcap) - q.base);
      Vec<L> gradient = (of_teacher * a.temperature + cold * factor) * a.scale;
      if (a.softcap > 0) gradient = gradient * simd::tanh(x / a.softcap).slope;
      at.store(z, gradient);
    });
    if (target >= 0) z[target] = from_float<T>(of_target);
    std::memset(z + a.vocab, 0, size_t(a.padded - a.vocab) * sizeof(T));
  }

  // Gradient of the target's logit; its cross-entropy part is a difference, computed with expm1.
  template <class T>
  static double gradient_at(const Softmax& q, const Softmax& p, T z, T v, double between, double loss, double z_weight,
                            const DistillRows& a) {
    const double log_q = q.log_of(to_float(z)), log_p = p.log_of(to_float(v));
    const double of_teacher =
        a.forward ? std::exp(log_q) - std::exp(log_p) : std::exp(log_q) * (log_q - log_p - between);
    return double(a.scale) * cap_slope(to_float(z), a.softcap) *
           (double(a.temperature) * of_teacher + double(a.ce_weight) * std::expm1(-loss) + z_weight * std::exp(-loss));
  }
};

struct DistillSumRows {
  float* sums;  // [3, n]
  const float *max, *teacher_max;
  const int32_t* targets;
  int64_t n, columns, padded, teacher_padded;
  bool forward;
  float inverse, softcap, teacher_softcap;
};

struct SumsKernel {
  template <int L, class T>
  static ATHANOR_INLINE void run(const T* logits, const T* teacher, const DistillSumRows& a, int64_t begin,
                                 int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      double sums[3] = {};
      if (a.targets[i] >= 0) row<L>(logits + i * a.padded, teacher + i * a.teacher_padded, i, a, sums);
      for (int k = 0; k < 3; ++k) a.sums[k * a.n + i] = float(sums[k]);
    }
  }

  template <int L, class T>
  static ATHANOR_INLINE void row(const T* z, const T* v, int64_t i, const DistillSumRows& a, double (&sums)[3]) {
    const float base = base_of(a.max[i], a.softcap), teacher_base = base_of(a.teacher_max[i], a.teacher_softcap);
    for (int64_t from = 0; from < a.columns; from += kBlock) {
      Vec<L> of_y = simd::broadcast<L>(0), of_u = of_y, cross = of_y;
      simd::for_columns<L, T>(std::min(kBlock, a.columns - from), [&](auto at) ATHANOR_INLINE_LAMBDA {
        const Vec<L> y = at.or_else((capped(at.load(z + from), a.softcap) - base) * a.inverse, -kInf);
        const Vec<L> u = at.or_else((capped(at.load(v + from), a.teacher_softcap) - teacher_base) * a.inverse, -kInf);
        const Vec<L> exp_y = simd::exp_nonpositive(y), exp_u = simd::exp_nonpositive(u);
        of_y += exp_y, of_u += exp_u;
        cross += a.forward ? weighted(exp_u, u - y) : weighted(exp_y, y - u);
      });
      sums[0] += double(simd::sum(of_y)), sums[1] += double(simd::sum(of_u)), sums[2] += double(simd::sum(cross));
    }
  }
};

}  // namespace

void CpuOps::run(const DistillSums& op, void*) {
  const DistillSumRows rows{.sums = flat<float>(op.sums),
                            .max = flat<float>(op.max),
                            .teacher_max = flat<float>(op.teacher_max),
                            .targets = flat<int32_t>(op.targets),
                            .n = op.logits.rows(),
                            .columns = op.part.count,
                            .padded = op.logits.cols(),
                            .teacher_padded = op.teacher.cols(),
                            .forward = op.kind == DistillLoss::kl,
                            .inverse = 1 / op.temperature,
                            .softcap = op.softcap,
                            .teacher_softcap = op.teacher_softcap};
  by_float(op.logits.dtype, [&]<class T>() {
    const T *logits = flat<T>(op.logits), *teacher = flat<T>(op.teacher);
    pool_.parallel_ranges(rows.n, row_grain(rows.padded), [&](int64_t begin, int64_t end) {
      simd::dispatch<SumsKernel>(logits, teacher, rows, begin, end);
    });
  });
}

void CpuOps::run(const DistilledCrossEntropy& op, void*) {
  const int64_t n = op.logits.rows(), padded = op.logits.cols();
  require_targets(op.kName, op.targets, op.part ? op.part.total : op.vocab);
  SumsOfParts all;
  if (op.part) {
    const float *sums = flat<float>(op.sums), *distill_sums = flat<float>(op.distill_sums);
    all = {.part = op.part,
           .max = flat<float>(op.max),
           .cold_sums = sums,
           .at_target = sums + n,
           .teacher_max = flat<float>(op.teacher_max),
           .y_sums = distill_sums,
           .u_sums = distill_sums + n,
           .cross = distill_sums + 2 * n};
  }
  const DistillRows rows{.losses = flat<float>(op.losses),
                         .divergences = flat<float>(op.divergences),
                         .targets = flat<int32_t>(op.targets),
                         .all = all,
                         .vocab = op.vocab,
                         .padded = padded,
                         .teacher_padded = op.teacher.cols(),
                         .scale = *op.scale.as<float>() * op.inv_count,
                         .forward = op.kind == DistillLoss::kl,
                         .temperature = op.temperature,
                         .inv_temperature = 1 / op.temperature,
                         .ce_weight = op.ce_weight,
                         .z_loss = op.z_loss,
                         .softcap = op.softcap,
                         .teacher_softcap = op.teacher_softcap};
  by_float(op.logits.dtype, [&]<class T>() {
    T* logits = flat<T>(op.logits);
    const T* teacher = flat<T>(op.teacher);
    pool_.parallel_ranges(n, row_grain(padded), [&](int64_t begin, int64_t end) {
      simd::dispatch<DistillKernel>(logits, teacher, rows, begin, end);
    });
  });
}

}  // namespace athanor
