// QK-clip: one pass over the weights of the heads to scale.
#include "ops/qk_clip.h"

#include "cpu/cpu_ops.h"
#include "cpu/update.h"

namespace athanor {
namespace {

using simd::Vec;

// Multiplies weights, and `also` if it is not null, by one factor.
struct ScaleBoth {
  template <int L>
  static ATHANOR_INLINE void run(float* w, float* also, int64_t n, float factor) {
    simd::for_columns<L, float>(n, [&](auto at) ATHANOR_INLINE_LAMBDA {
      at.store(w, at.load(w) * factor);
      if (also) at.store(also, at.load(also) * factor);
    });
  }
};

// Calls fn(begin, end, output) for the elements of [begin, end) of a part, in runs whose outputs belong to one head;
// `output` is the output of the first element.
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
    const UpdatePart weights = p.weights();
    const auto scale = [&](int64_t from, int64_t to, float factor) {
      for (int64_t begin = from; begin < to; begin += update::kPiece) {
        const int64_t n = std::min(update::kPiece, to - begin);
        update::Workspace workspace;
        float* w = update::open_master(weights, begin, n, workspace);
        simd::dispatch<ScaleBoth>(w, also ? also + begin : nullptr, n, factor);
        update::close_master(weights, begin, n, w, {op.seed, p.stream, first + uint64_t(begin)});
      }
    };
    pool_.parallel_ranges(p.master.numel(), kChunkElements, [&](int64_t begin, int64_t end) {
      for_heads(p.range, op.head_dim, begin, end, [&](int64_t from, int64_t to, int64_t output) {
        const float factor = clip_factor(op, top, output);
        if (factor != 1) scale(from, to, factor);
      });
    });
  }
}

}  // namespace athanor
