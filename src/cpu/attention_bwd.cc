// Attention backward: recomputes scores from the stored log-sum-exp, then runs the five GEMMs of a block [Dao et al.
// 2022, alg. 4]. Uses one pass per key/value head (all sums of a head on one thread), or, with too few heads for all
// threads, one pass for dq over blocks of queries and one for dk, dv over blocks of keys.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "cpu/attention_block.h"
#include "cpu/cpu_ops.h"
#include "cpu/simd.h"

namespace athanor {
namespace {

constexpr int64_t kWholeHeads = 8;  // minimum number of key/value heads (over all spans) for the single-pass variant

// Layout of a worker's scratch memory, in floats.
struct BwdLayout {
  bool pairs;
  // In pairs a panel of scores is rounded while it is in L1; else the scores of all panels are kept as they are.
  int64_t score_stride, unit_stride;  // of scores, and in units of p and ds
  int64_t q_lanes, dy_lanes, q, dy, scores, gradient, slope, p, ds, paired, k, v, k_transposed, panels, dq, rows, lse,
      delta, total;
  BwdLayout(const AttentionBwd& op, const Kernels& kern) {
    const AttentionShape& s = op.shape;
    const int64_t dim = s.head_dim, wide = round_up<int64_t>(dim, kern.nr);
    pairs = attention_in_pairs(kern, s, op.k, op.v);
    const bool convert = op.q.dtype != DType::f32 && !pairs;
    score_stride = pairs ? kern.nr : kQueryBlock, unit_stride = units_of(kQueryBlock, pairs);
    const int64_t all_units = pairs ? kKeyBlock * unit_stride : 0;
    q_lanes = 0;                                   // [panels][units of D][nr]
    dy_lanes = q_lanes + kQueryBlock * dim;        // [panels][units of D][nr]
    q = dy_lanes + kQueryBlock * dim;              // panels of [units of kQueryBlock][nr]
    dy = q + kQueryBlock * wide;                   // panels of [units of kQueryBlock][nr]
    scores = dy + kQueryBlock * wide;              // [kKeyBlock][score_stride]
    gradient = scores + kKeyBlock * score_stride;  // [kKeyBlock][score_stride]
    slope = gradient + kKeyBlock * score_stride;   // [kKeyBlock][score_stride], only with softcap
    const int64_t after = slope + (s.softcap > 0 ? kKeyBlock * score_stride : 0);
    p = pairs ? after : scores;                 // [kKeyBlock][unit_stride]: probabilities, left operand of dv
    ds = pairs ? after + all_units : gradient;  // [kKeyBlock][unit_stride]: left operand of dk
    paired = after + 2 * all_units;             // [kKeyBlock / 2][nr]: a panel of gradient as pairs, only in pairs
    k = paired + (pairs ? kKeyBlock / 2 * kern.nr : 0);  // [kKeyBlock][D]
    v = k + (convert ? kKeyBlock * dim : 0);             // [kKeyBlock][D]
    k_transposed = v + (convert ? kKeyBlock * dim : 0);  // [D][transposed_stride()]
    panels = k_transposed + kKeyBlock * dim;
    dq = panels + transpose_scratch(dim, kern.nr, pairs);  // [panels][D][nr]
    rows = dq + kQueryBlock * dim;                         // [nr][wide] of one panel of dq
    lse = rows + kern.nr * wide;                           // [kQueryBlock]
    delta = lse + kQueryBlock;                             // [kQueryBlock]
    total = round_up<int64_t>(delta + kQueryBlock, 64);
  }
};

// Accumulators of dk and dv: the tensors themselves if they are f32, else f32 scratch [Nk, kv_heads D].
struct KeySums {
  Tensor dk, dv;
};

template <class T>
ATHANOR_CLONES float dot(const T* a, const T* b, int64_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += to_float(a[i]) * to_float(b[i]);
  return sum;
}

// One block of queries of one head, and its GEMMs with blocks of keys.
class BwdBlock {
 public:
  BwdBlock(const AttentionBwd& op, const KeySums& sums, const Kernels& kern, const BwdLayout& layout, float* memory)
      : op_(op),
        sums_(sums),
        kern_(kern),
        at_(layout),
        memory_(memory),
        dim_(op.shape.head_dim),
        pairs_(layout.pairs) {}

  void start(const SpanBlocks::Block& block, int64_t head) {
    span_ = block.span, first_ = block.first, size_ = block.size;
    q_col_ = head * dim_, k_col_ = head / (op_.shape.heads / op_.shape.kv_heads) * dim_;
    const HeadRows q = queries(op_.q), dy = queries(op_.dy);
    rows_as_lanes(kern_, q, memory_ + at_.q_lanes, pairs_);
    rows_as_lanes(kern_, dy, memory_ + at_.dy_lanes, pairs_);
    rows_as_panels(kern_, q, memory_ + at_.q, pairs_);
    rows_as_panels(kern_, dy, memory_ + at_.dy, pairs_);
    float *lse = memory_ + at_.lse, *delta = memory_ + at_.delta;
    std::fill_n(lse, kQueryBlock, std::numeric_limits<float>::infinity());
    std::fill_n(delta, kQueryBlock, 0.0f);
    by_float(op_.q.dtype, [&]<class T>() {
      for (int64_t i = 0; i < size_; ++i) {
        const float stored = op_.lse.as<float>()[(q.row + i) * op_.shape.heads + head];
        lse[i] = stored == -std::numeric_limits<float>::infinity() ? -stored : stored;  // no keys: e^(x - inf) = 0
        delta[i] = dot(op_.dy.as<T>() + (q.row + i) * op_.dy.stride() + q_col_,
                       op_.y.as<T>() + (q.row + i) * op_.y.stride() + q_col_, dim_);
      }
    });
    std::fill_n(memory_ + at_.dq, kQueryBlock * dim_, 0.0f);
  }

  KeyRange next_keys(int64_t from) const { return athanor::next_keys(span_, op_.shape, first_, size_, from); }

  struct Want {
    bool dq, dkv;
  };
  // Adds the contributions of a block of keys (at most kKeyBlock, each seen by at least one query of the block) to the
  // wanted ones of dq, dk and dv.
  void meet_keys(KeyRange keys, Want want) const {
    const HeadRows k_rows{op_.k, span_.k_begin + keys.first, keys.size(), k_col_, dim_};
    const HeadRows v_rows{op_.v, k_rows.row, k_rows.rows, k_col_, dim_};
    const Rows k = rows_as_units(kern_, k_rows, memory_ + at_.k, pairs_),
               v = rows_as_units(kern_, v_rows, memory_ + at_.v, pairs_);
    if (want.dq) keys_transposed(kern_, k_rows, k, memory_ + at_.panels, memory_ + at_.k_transposed, pairs_);
    for (int64_t i = 0; i < size_; i += kern_.nr) {
      const int64_t lanes = std::min<int64_t>(kern_.nr, size_ - i);
      KeyRange now = keys_within(span_, op_.shape, first_ + i, lanes, keys);
      if (pairs_ && now.size() > 0)
        now.first -= (now.first - keys.first) % 2;  // a pair is not cut; masks hide its first key
      if (want.dkv) clear_scores(i, keys, now);
      if (now.size() == 0) continue;
      const int64_t skip = now.first - keys.first;
      find_scores(i, lanes, now, skip, k, v);
      if (want.dq) add_dq(i, now.size(), skip);
      if (want.dkv && pairs_) round_scores(i, now.size(), skip);
    }
    if (want.dkv) add_dkv(keys);
    if (kern_.release) kern_.release();
  }

  void finish_dq() const {
    const HeadRows all = queries(op_.dq);
    for (int64_t i = 0; i < size_; i += kern_.nr)
      store_transposed(kern_, {all.t, all.row + i, std::min<int64_t>(kern_.nr, size_ - i), all.col, all.cols},
                       memory_ + at_.dq + i * dim_, nullptr, memory_ + at_.rows);
  }

 private:
  HeadRows queries(const Tensor& t) const { return {t, span_.q_begin + first_, size_, q_col_, dim_}; }
  // The panel at `query` of scores, their gradient or the slope, from row `key` on.
  float* panel(int64_t part, int64_t key, int64_t query) const {
    return memory_ + part + key * at_.score_stride + (pairs_ ? 0 : query);
  }
  float* units(int64_t part, int64_t key, int64_t query) const {  // of p or ds
    return memory_ + part + key * at_.unit_stride + units_of(query, pairs_);
  }

  // Zeroes p and ds of keys that the panel at query i does not see, for the sums in dk and dv.
  void clear_scores(int64_t i, KeyRange keys, KeyRange now) const {
    const auto clear = [&](int64_t begin, int64_t end) {
      for (int64_t key = begin - keys.first; key < end - keys.first; ++key)
        for (const int64_t part : {at_.p, at_.ds}) std::fill_n(units(part, key, i), units_of(kern_.nr, pairs_), 0.0f);
    };
    if (now.size() == 0) return clear(keys.first, keys.last);
    clear(keys.first, now.first);
    clear(now.last, keys.last);
  }

  void round_scores(int64_t i, int64_t keys, int64_t skip) const {
    for (const auto& [from, to] : {std::pair{at_.scores, at_.p}, std::pair{at_.gradient, at_.ds}})
      kern_.round_rows(units(to, skip, i), at_.unit_stride, panel(from, skip, i), at_.score_stride, keys, kern_.nr);
  }

  // Computes p and ds of the panel at query i; `skip` is the row of now.first within k, v and the scores.
  void find_scores(int64_t i, int64_t lanes, KeyRange now, int64_t skip, const Rows& k, const Rows& v) const {
    float *s = panel(at_.scores, skip, i), *ds = panel(at_.gradient, skip, i);
    const int64_t units = units_of(dim_, pairs_), stride = at_.score_stride;
    BlockGemm p{.pairs = pairs_,
                .a = k.data + skip * k.stride,
                .a_stride = k.stride,
                .b = memory_ + at_.q_lanes + i * units,
                .b_panel = 0,
                .c = s,
                .c_stride = stride,
                .rows = now.size(),
                .cols = kern_.nr,
                .k = units,
                .add = false};
    multiply(kern_, p);
    p.a = v.data + skip * v.stride, p.a_stride = v.stride;
    p.b = memory_ + at_.dy_lanes + i * units, p.c = ds;
    multiply(kern_, p);
    float* slope = op_.shape.softcap > 0 ? panel(at_.slope, skip, i) : nullptr;
    if (slope) cap_scores(s, slope, now.size(), kern_.nr, stride, op_.shape);
    mask_scores(s, stride, span_, op_.shape, first_ + i, lanes, now);
    kern_.score_gradient(
        {s, ds, now.size(), stride, scale_of_scores(op_.shape), memory_ + at_.lse + i, memory_ + at_.delta + i});
    for (int64_t row = 0; slope && row < now.size() * stride; row += stride)
      for (int64_t lane = 0; lane < kern_.nr; ++lane) ds[row + lane] *= slope[row + lane];
  }

  // dq^T += k^T ds^T
  void add_dq(int64_t i, int64_t keys, int64_t skip) const {
    float *ds = panel(at_.gradient, skip, i), *paired = memory_ + at_.paired;
    if (pairs_) kern_.pair_rows(paired, kern_.nr, ds, at_.score_stride, keys, kern_.nr);
    multiply(kern_, {.pairs = pairs_,
                     .a = memory_ + at_.k_transposed + units_of(skip, pairs_),
                     .a_stride = transposed_stride(pairs_),
                     .b = pairs_ ? paired : ds,
                     .b_stride = pairs_ ? kern_.nr : kQueryBlock,
                     .b_panel = 0,
                     .c = memory_ + at_.dq + i * dim_,
                     .c_stride = kern_.nr,
                     .rows = dim_,
                     .cols = kern_.nr,
                     .k = units_of(keys, pairs_),
                     .add = true});
  }

  // dv += p dy and dk += ds q, a few keys at a time, so that queries before the first of these keys are skipped.
  void add_dkv(KeyRange keys) const {
    const int64_t mr = kern_.max_rows(pairs_);
    for (int64_t key = keys.first; key < keys.last; key += mr) {
      const int64_t rows = std::min(mr, keys.last - key), skip = key - keys.first;
      int64_t lane = std::clamp<int64_t>(int64_t(span_.k_pos) + key - span_.q_pos - first_, 0, size_ - 1);
      if (pairs_) lane -= lane % 2;
      const int64_t row = span_.k_begin + key;
      BlockGemm p{.pairs = pairs_,
                  .a = units(at_.p, skip, lane),
                  .a_stride = at_.unit_stride,
                  .b = memory_ + at_.dy + units_of(lane, pairs_) * kern_.nr,
                  .b_panel = units_of(size_, pairs_) * kern_.nr,
                  .c = sums_.dv.as<float>() + row * sums_.dv.stride() + k_col_,
                  .c_stride = sums_.dv.stride(),
                  .rows = rows,
                  .cols = dim_,
                  .k = units_of(size_ - lane, pairs_),
                  .add = true};
      multiply(kern_, p);
      p.a = units(at_.ds, skip, lane);
      p.b = memory_ + at_.q + units_of(lane, pairs_) * kern_.nr;
      p.c = sums_.dk.as<float>() + row * sums_.dk.stride() + k_col_, p.c_stride = sums_.dk.stride();
      multiply(kern_, p);
    }
  }

  const AttentionBwd& op_;
  const KeySums& sums_;
  const Kernels& kern_;
  const BwdLayout& at_;
  float* memory_;
  const int64_t dim_;
  const bool pairs_;
  Span span_{};
  int64_t first_ = 0, size_ = 0, q_col_ = 0, k_col_ = 0;
};

// The whole backward pass of one op.
class Backward {
 public:
  Backward(const AttentionBwd& op, const Kernels& kern, float* scratch, ThreadPool& pool)
      : op_(op),
        kern_(kern),
        pool_(pool),
        layout_(op, kern),
        workers_(scratch),
        group_(op.shape.heads / op.shape.kv_heads) {
    float* sums = scratch + pool.size() * layout_.total;
    sums_ = {op.dk, op.dv};
    if (op.k.dtype != DType::f32)
      sums_ = {{sums, DType::f32, op.k.shape}, {sums + op.k.numel(), DType::f32, op.k.shape}};
  }
  static size_t scratch_floats(const AttentionBwd& op, const Kernels& kern, int threads) {
    const int64_t sums = op.k.dtype == DType::f32 ? 0 : 2 * op.k.numel();
    return size_t(threads * BwdLayout(op, kern).total + sums);
  }

  void run() {
    const SpanBlocks queries = span_blocks(op_.spans, SpanSide::queries, kQueryBlock);
    const SpanBlocks keys = span_blocks(op_.spans, SpanSide::keys, kKeyBlock);
    if (int64_t(keys.spans.size()) * op_.shape.kv_heads >= kWholeHeads)
      whole_heads();
    else
      by_blocks(queries, keys);
    // Queries of spans without keys get no gradient.
    std::vector<RowRange> blind;
    for (const Span& s : queries.spans)
      if (s.k_len == 0) blind.push_back({s.q_begin, s.q_len});
    zero_rows(op_.dq, blind, pool_);
  }

 private:
  BwdBlock block(int worker) const { return {op_, sums_, kern_, layout_, workers_ + worker * layout_.total}; }

  void whole_heads() {
    SpanBlocks spans = span_blocks(op_.spans, SpanSide::keys, std::numeric_limits<int32_t>::max());
    // The longest work comes first to balance the threads.
    std::stable_sort(spans.spans.begin(), spans.spans.end(), [](const Span& a, const Span& b) {
      return int64_t(a.q_len) * a.k_len > int64_t(b.q_len) * b.k_len;
    });
    const int64_t kv_heads = op_.shape.kv_heads;
    pool_.parallel_for(int64_t(spans.spans.size()) * kv_heads, [&](int64_t chunk, int worker) {
      const Span& span = spans.spans[size_t(chunk / kv_heads)];
      const int64_t kv = chunk % kv_heads;
      BwdBlock part = block(worker);
      clear_sums(span.k_begin, span.k_len, kv);
      for (int64_t head = kv * group_; head < (kv + 1) * group_; ++head)
        for (int64_t q = 0; q < span.q_len; q += kQueryBlock) {
          part.start({span, q, std::min<int64_t>(kQueryBlock, span.q_len - q)}, head);
          meet_all(part, {true, true});
          part.finish_dq();
        }
      finish_sums(span.k_begin, span.k_len, kv);
    });
  }

  void by_blocks(const SpanBlocks& queries, const SpanBlocks& keys) {
    const int64_t heads = op_.shape.heads, kv_heads = op_.shape.kv_heads;
    pool_.parallel_for(queries.count() * heads, [&](int64_t chunk, int worker) {
      BwdBlock part = block(worker);
      part.start(queries.at(chunk / heads), chunk % heads);
      meet_all(part, {true, false});
      part.finish_dq();
    });
    pool_.parallel_for(keys.count() * kv_heads, [&](int64_t chunk, int worker) {
      const SpanBlocks::Block mine = keys.at(chunk / kv_heads);
      const int64_t kv = chunk % kv_heads;
      BwdBlock part = block(worker);
      clear_sums(mine.span.k_begin + mine.first, mine.size, kv);
      for (int64_t head = kv * group_; head < (kv + 1) * group_; ++head)
        for (int64_t q = 0; q < mine.span.q_len; q += kQueryBlock) {
          const int64_t size = std::min<int64_t>(kQueryBlock, mine.span.q_len - q);
          const KeyRange all = keys_within(mine.span, op_.shape, q, size, {mine.first, mine.first + mine.size});
          if (all.size() == 0) continue;
          part.start({mine.span, q, size}, head);
          for (KeyRange now = part.next_keys(all.first); now.first < all.last; now = part.next_keys(now.last)) {
            now.last = std::min(now.last, all.last);
            part.meet_keys(now, {false, true});
          }
        }
      finish_sums(mine.span.k_begin + mine.first, mine.size, kv);
    });
  }

  // Processes all visible keys in blocks that start at multiples of kKeyBlock.
  static void meet_all(const BwdBlock& part, BwdBlock::Want want) {
    for (KeyRange keys{0, 0}; (keys = part.next_keys(keys.last)).size() > 0;) {
      keys.last = std::min((keys.first / kKeyBlock + 1) * kKeyBlock, keys.last);
      part.meet_keys(keys, want);
    }
  }

  void clear_sums(int64_t row, int64_t rows, int64_t kv) const {
    for (const Tensor& t : {sums_.dk, sums_.dv})
      for (int64_t r = row; r < row + rows; ++r)
        std::fill_n(t.as<float>() + r * t.stride() + kv * op_.shape.head_dim, op_.shape.head_dim, 0.0f);
  }
  void finish_sums(int64_t row, int64_t rows, int64_t kv) const {
    if (op_.k.dtype == DType::f32) return;
    const int64_t col = kv * op_.shape.head_dim;
    for (auto [to, from] : {std::pair<const Tensor&, const Tensor&>{op_.dk, sums_.dk}, {op_.dv, sums_.dv}})
      store_rows({to, row, rows, col, op_.shape.head_dim}, from.as<float>() + row * from.stride() + col, from.stride(),
                 nullptr);
  }

  const AttentionBwd& op_;
  const Kernels& kern_;
  ThreadPool& pool_;
  const BwdLayout layout_;
  float* workers_;
  const int64_t group_;
  KeySums sums_;
};

}  // namespace

size_t attention_scratch(const AttentionBwd& op, const Kernels& kern, int threads) {
  return Backward::scratch_floats(op, kern, threads) * sizeof(float);
}

void attention(const AttentionBwd& op, const Kernels& kern, ThreadPool& pool, void* scratch) {
  check_spans(op.kName, op.spans, op.q.rows(), op.k.rows(), true);
  zero_rows(op.dq, uncovered_rows(op.spans, SpanSide::queries, op.q.rows()), pool);
  const std::vector<RowRange> gaps = uncovered_rows(op.spans, SpanSide::keys, op.k.rows());
  zero_rows(op.dk, gaps, pool);
  zero_rows(op.dv, gaps, pool);
  Backward(op, kern, static_cast<float*>(scratch), pool).run();
}

size_t CpuOps::scratch(const AttentionBwd& op) const { return attention_scratch(op, kernels(), pool_.size()); }
void CpuOps::run(const AttentionBwd& op, void* scratch) {
  if (op.cos_sin) return in_parts(op, [&](const auto& part) { run(part, scratch); });
  attention(op, kernels(), pool_, scratch);
}

}  // namespace athanor
