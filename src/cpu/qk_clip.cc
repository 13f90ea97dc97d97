// QK-clip: one pass over the weights of the heads that are scaled.
#include "ops/qk_clip.h"

#include "cpu/cpu_ops.h"
#include "cpu/update.h"

namespace athanor {
namespace {

using simd::Vec;

// Weights, and what is scaled with them if `also` is not null, times one factor.
struct Times {
  template <int L, class Master>
  static ATHANOR_INLINE void run(const Master& master, float* also, int64_t n, float factor, const Noise& noise) {
    update::Random random;
    for (int64_t begin = 0; begin < n; begin += update::kPiece) {
      if constexpr (Master::kRandom) random.fill({noise.seed, noise.stream, noise.first + uint64_t(begin)});
      const Master here = master.from(begin);
      simd::for_columns<L, float>(std::min(update::kPiece, n - begin), [&](auto at) ATHANOR_INLINE_LAMBDA {
        const Vec<L> w = here.template load<L>(at);
        here.template store<L>(at, w * factor, random);
        if (also) at.store(also + begin, at.load(also + begin) * factor);
      });
    }
  }
};

// fn(begin, end, output): the elements of [begin, end) of a part in runs whose outputs belong to one head; `output` is
// that of the first.
template <class Fn>
void for_heads(const OutputRange& range, int64_t head_dim, int64_t begin, int64_t end, const Fn& fn) {
  while (begin < end) {
    const int64_t output = range.output(begin), left = head_dim - output % head_dim;
    const int64_t at = range.first + begin;
    const int64_t run = range.columns ? std::min(left, range.cols - output) : left * range.cols - at % range.cols;
    const int64_t stop = std::min(end, begin + run);
    fn(begin, stop, output);
    begin = stop;
  }
}

}  // namespace

void CpuOps::run(const QkClip& op, void*) {
  const StepState& state = update::state_of(op.state);
  if (state.skip) return;
  for (const QkClip::Part& p : op.parts) {
    const float* top = flat<float>(p.top);
    float* also = p.also ? flat<float>(p.also) : nullptr;
    const uint64_t first = (uint64_t(state.updates) << 40) + p.first;
    update::by_master(p.weights(), [&](const auto& master) {
      pool_.parallel_ranges(p.master.numel(), kChunkElements, [&](int64_t begin, int64_t end) {
        for_heads(p.range, op.head_dim, begin, end, [&](int64_t from, int64_t to, int64_t output) {
          const float factor = clip_factor(op, top, output);
          if (factor == 1) return;
          simd::dispatch<Times>(master.from(from), also ? also + from : nullptr, to - from, factor,
                                Noise{op.seed, p.stream, first + uint64_t(from)});
        });
      });
    });
  }
}

}  // namespace athanor
