// LAMB: one pass over weights, moments and gradient, and one over the gradient.
#include "ops/lamb.h"
#include "cpu/cpu_ops.h"
#include "cpu/update.h"

namespace athanor {
namespace {

using simd::Vec;

struct Direction {
  template <int L, class M, class V>
  static ATHANOR_INLINE void run(const float* w, M* m, V* v, float* grad, int64_t n, const LambScalars& a,
                                 const Noise& noise) {
    update::Random random;
    for (int64_t begin = 0; begin < n; begin += update::kPiece) {
      if constexpr (sizeof(M) == 2 || sizeof(V) == 2)
        random.fill({noise.seed, noise.stream, noise.first + uint64_t(begin)});
      simd::for_columns<L, float>(std::min(update::kPiece, n - begin), [&](auto at) ATHANOR_INLINE_LAMBDA {
        const Vec<L> weight = at.load(w + begin), g = at.load(grad + begin) * a.grad_scale;
        const Vec<L> first = a.beta1 * at.load(m + begin) + a.one_minus_beta1 * g;
        const Vec<L> second = a.beta2 * at.load(v + begin) + a.one_minus_beta2 * g * g;
        const Vec<L> u = a.inverse_bias1 * first / (simd::sqrt(second) / a.root_bias2 + a.eps), product = weight * u;
        const Vec<L> decay = simd::each_part<L>([&](int i) ATHANOR_INLINE_LAMBDA {
          const simd::Float<L> zero = {}, with = zero + a.decay, away = zero + a.decay_away;
          return product.part[i] >= zero ? with : away;
        });
        at.store(grad + begin, u + decay * weight);
        update::store_moment<L, true>(at, m + begin, first, random);
        update::store_moment<L, false>(at, v + begin, second, random);
      });
    }
  }
};

struct ScaleBy {
  template <int L>
  static ATHANOR_INLINE void run(float* x, int64_t n, float by) {
    simd::for_columns<L, float>(n, [&](auto at) ATHANOR_INLINE_LAMBDA { at.store(x, at.load(x) * by); });
  }
};

}  // namespace

void CpuOps::run(const LambDirection& op, void*) {
  const StepState& state = update::state_of(op.state);
  const LambScalars scalars = lamb_scalars(op, state), others = scalars.undecayed();
  for (const LambDirection::Part& p : op.parts) {
    float* grad = flat<float>(p.grad);
    const auto range = [&](int64_t begin, int64_t end, const LambScalars& a) {
      const Noise noise{op.seed, p.moment_stream, (uint64_t(state.updates) << 40) + p.first + uint64_t(begin)};
      update::by_state<Kept::required>(p.m, [&](auto* m) {
        update::by_state<Kept::required>(p.v, [&](auto* v) {
          simd::dispatch<Direction>(flat<float>(p.w) + begin, m + begin, v + begin, grad + begin, end - begin, a,
                                    noise);
        });
      });
    };
    pool_.parallel_ranges(p.grad.numel(), kChunkElements, [&](int64_t begin, int64_t end) {
      if (state.skip) {
        std::memset(grad + begin, 0, size_t(end - begin) * sizeof(float));
        return;
      }
      const int64_t cut = std::clamp(p.decayed, begin, end);
      range(begin, cut, scalars);
      range(cut, end, others);
    });
  }
}

void CpuOps::run(const ScaleByTrustRatio& op, void*) {
  for (const ScaleByTrustRatio::Part& p : op.parts) {
    const float ratio = trust_ratio(flat<double>(p.sums), p.sums.cols());
    float* grad = flat<float>(p.grad);
    pool_.parallel_ranges(p.grad.numel(), kChunkElements, [&](int64_t begin, int64_t end) {
      simd::dispatch<ScaleBy>(grad + begin, end - begin, ratio);
    });
  }
}

}  // namespace athanor
