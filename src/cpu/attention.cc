// Attention forward: blocks of queries against blocks of keys with a running softmax [Dao et al. 2022, alg. 1].
// Scores and outputs are stored transposed, [keys, queries] and [head_dim, queries]: lanes are queries, so that the
// softmax needs no sums across lanes, and probabilities are the right operand of y^T = v^T p^T as they are.
#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <limits>

#include "cpu/amax.h"
#include "cpu/attention_block.h"
#include "cpu/cpu_ops.h"

namespace athanor {
namespace {

// Layout of a worker's scratch memory, in floats.
struct FwdLayout {
  bool pairs;
  int64_t q, scores, paired, y, rows, k, v, panels, state, total;
  FwdLayout(const AttentionFwd& op, const Kernels& kern) {
    const AttentionShape& s = op.shape;
    const int64_t wide = round_up<int64_t>(s.head_dim, kern.nr);
    pairs = attention_in_pairs(kern, s, op.k, op.v);
    const bool convert = op.q.dtype != DType::f32 && !pairs;
    q = 0;                                           // [panels][units of D][nr]
    scores = q + kQueryBlock * s.head_dim;           // one panel: [kKeyBlock][nr]
    paired = scores + kKeyBlock * kern.nr;           // [kKeyBlock / 2][nr]: the panel's probabilities as bf16 pairs
    y = paired + kKeyBlock / 2 * kern.nr;            // [panels][D][nr]
    rows = y + kQueryBlock * s.head_dim;             // [nr][wide] of one panel of y
    k = rows + kern.nr * wide;                       // [kKeyBlock][D], and then the same of v
    v = k + (convert ? kKeyBlock * s.head_dim : 0);  // transposed: [D][transposed_stride()]
    panels = v + kKeyBlock * s.head_dim;
    state = panels + transpose_scratch(s.head_dim, kern.nr, pairs);  // top, sum, rescale [kQueryBlock] each
    total = round_up<int64_t>(state + 3 * kQueryBlock, 64);
  }
};

// Atomic x = max(x, y); the result does not depend on the order, since -0 is never stored.
void raise(float& x, float y) {
  std::atomic_ref<float> shared(x);
  float now = shared.load(std::memory_order_relaxed);
  while (y > now && !shared.compare_exchange_weak(now, y + 0.0f, std::memory_order_relaxed)) {
  }
}

// One block of queries of one head.
class FwdBlock {
 public:
  FwdBlock(const AttentionFwd& op, const Amax& amax, const Kernels& kern, const FwdLayout& layout, float* memory)
      : op_(op),
        amax_(amax),
        kern_(kern),
        at_(layout),
        memory_(memory),
        dim_(op.shape.head_dim),
        pairs_(layout.pairs) {}

  void run(const SpanBlocks::Block& block, int64_t head) {
    span_ = block.span, first_ = block.first, size_ = block.size;
    q_col_ = head * dim_, k_col_ = head / (op_.shape.heads / op_.shape.kv_heads) * dim_;
    const int64_t row = span_.q_begin + first_;
    rows_as_lanes(kern_, {op_.q, row, size_, q_col_, dim_}, memory_ + at_.q, pairs_);
    float *top = state(0), *sum = state(1);
    std::fill_n(top, kQueryBlock, -std::numeric_limits<float>::infinity());
    std::fill_n(sum, kQueryBlock, 0.0f);
    started_.fill(false);
    for (KeyRange keys{0, 0}; (keys = next_keys(span_, op_.shape, first_, size_, keys.last)).size() > 0;) {
      keys.last = std::min(keys.first + kKeyBlock, keys.last);
      meet_keys(keys);
    }
    float* factor = state(2);
    float* lse = op_.lse.as<float>() + row * op_.shape.heads + head;
    for (int64_t i = 0; i < size_; ++i) {
      lse[i * op_.shape.heads] = top[i] + std::log(sum[i]);  // -inf + -inf for a query without keys
      factor[i] = sum[i] == 0 ? 0.0f : 1.0f / sum[i];
    }
    if (op_.top) raise(op_.top.as<float>()[head], *std::max_element(top, top + size_));
    for (int64_t i = 0; i < size_; i += kern_.nr) {
      const HeadRows to{op_.y, row + i, std::min<int64_t>(kern_.nr, size_ - i), q_col_, dim_};
      if (!started_[i / kern_.nr]) std::fill_n(y_at(i), dim_ * kern_.nr, 0.0f);
      store_transposed(kern_, to, y_at(i), factor + i, memory_ + at_.rows);
    }
    for (int64_t i = row; i < row + size_; ++i)
      amax_.add(op_.y, i * op_.y.cols() + q_col_, i * op_.y.cols() + q_col_ + dim_);
    if (kern_.release) kern_.release();
  }

 private:
  float* y_at(int64_t query) const { return memory_ + at_.y + query * dim_; }  // of the panel at `query`
  float* state(int i) const { return memory_ + at_.state + i * kQueryBlock; }

  void meet_keys(KeyRange keys) {
    const int64_t row = span_.k_begin + keys.first;
    const HeadRows v_rows{op_.v, row, keys.size(), k_col_, dim_};
    keys_transposed(kern_, v_rows, rows_as_units(kern_, v_rows, memory_ + at_.k, pairs_), memory_ + at_.panels,
                    memory_ + at_.v, pairs_);
    const Rows k = rows_as_units(kern_, {op_.k, row, keys.size(), k_col_, dim_}, memory_ + at_.k, pairs_);
    for (int64_t i = 0; i < size_; i += kern_.nr) {
      const int64_t lanes = std::min<int64_t>(kern_.nr, size_ - i);
      KeyRange now = keys_within(span_, op_.shape, first_ + i, lanes, keys);
      if (now.size() == 0) continue;
      if (pairs_) now.first -= (now.first - keys.first) % 2;  // a pair is not cut; masks hide its first key
      meet_panel(i, lanes, now, now.first - keys.first, k);
    }
  }

  // Processes queries [i, i + lanes) of the block against keys `now`, which start at row `skip` of k.
  void meet_panel(int64_t i, int64_t lanes, KeyRange now, int64_t skip, const Rows& k) {
    const int64_t nr = kern_.nr;
    float* scores = memory_ + at_.scores;
    multiply(kern_, {.pairs = pairs_,
                     .a = k.data + skip * k.stride,
                     .a_stride = k.stride,
                     .b = memory_ + at_.q + i * units_of(dim_, pairs_),
                     .b_panel = 0,
                     .c = scores,
                     .c_stride = nr,
                     .rows = now.size(),
                     .cols = nr,
                     .k = units_of(dim_, pairs_),
                     .add = false});
    if (op_.shape.softcap > 0) cap_scores(scores, nullptr, now.size(), nr, nr, op_.shape);
    mask_scores(scores, nr, span_, op_.shape, first_ + i, lanes, now);
    float* rescale = state(2) + i;
    kern_.softmax({scores, now.size(), scale_of_scores(op_.shape), state(0) + i, state(1) + i, rescale});
    if (started_[i / nr]) scale_columns(y_at(i), rescale);
    float* p = pairs_ ? memory_ + at_.paired : scores;
    if (pairs_) kern_.pair_rows(p, nr, scores, nr, now.size(), nr);
    multiply(kern_, {.pairs = pairs_,
                     .a = memory_ + at_.v + units_of(skip, pairs_),
                     .a_stride = transposed_stride(pairs_),
                     .b = p,
                     .b_panel = 0,
                     .c = y_at(i),
                     .c_stride = nr,
                     .rows = dim_,
                     .cols = nr,
                     .k = units_of(now.size(), pairs_),
                     .add = started_[i / nr]});
    started_[i / nr] = true;
  }

  // y [D][nr] times factors [nr]
  void scale_columns(float* y, const float* factors) const {
    if (std::all_of(factors, factors + kern_.nr, [](float f) { return f == 1.0f; })) return;
    for (int64_t d = 0; d < dim_; ++d)
      for (int64_t l = 0; l < kern_.nr; ++l) y[d * kern_.nr + l] *= factors[l];
  }

  const AttentionFwd& op_;
  const Amax& amax_;
  const Kernels& kern_;
  const FwdLayout& at_;
  float* memory_;
  const int64_t dim_;
  const bool pairs_;
  Span span_{};
  int64_t first_ = 0, size_ = 0, q_col_ = 0, k_col_ = 0;
  std::array<bool, kQueryBlock> started_;  // per panel: has processed keys, so that y is initialized
};

}  // namespace

size_t attention_scratch(const AttentionFwd& op, const Kernels& kern, int threads) {
  return size_t(FwdLayout(op, kern).total) * size_t(threads) * sizeof(float);
}

void attention(const AttentionFwd& op, const Kernels& kern, ThreadPool& pool, void* scratch) {
  check_spans(op.kName, op.spans, op.q.rows(), op.k.rows(), false);
  const std::vector<RowRange> gaps = uncovered_rows(op.spans, SpanSide::queries, op.q.rows());
  zero_rows(op.y, gaps, pool);
  const int64_t heads = op.shape.heads;
  for (const RowRange& gap : gaps)
    std::fill_n(op.lse.as<float>() + gap.begin * heads, gap.size * heads, -std::numeric_limits<float>::infinity());
  const FwdLayout layout(op, kern);
  const SpanBlocks blocks = span_blocks(op.spans, SpanSide::queries, kQueryBlock);
  const Amax amax(op.amax);
  pool.parallel_for(blocks.count() * heads, [&](int64_t chunk, int worker) {
    FwdBlock block(op, amax, kern, layout, static_cast<float*>(scratch) + worker * layout.total);
    block.run(blocks.at(chunk / heads), chunk % heads);
  });
}

size_t CpuOps::scratch(const AttentionFwd& op) const { return attention_scratch(op, kernels(), pool_.size()); }
void CpuOps::run(const AttentionFwd& op, void* scratch) { attention(op, kernels(), pool_, scratch); }

}  // namespace athanor
