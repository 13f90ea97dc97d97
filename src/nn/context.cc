#include "nn/context.h"

#include <algorithm>
#include <cstring>

#include "base/int.h"

namespace athanor {
namespace {

// All-gathers keys and values of whole sequences: [all rows, 2 K D].
Buffer gather(Ctx& c, const Tensor& qkv, const Tensor& rows, const AttentionShape& s) {
  const Tensor own = keys_and_values(qkv, s);
  Buffer by_rank = c.alloc("keys and values by rank", own.dtype, {rows.numel(), own.cols()});
  {
    const Buffer packed = c.alloc("keys and values of a rank", own.dtype, own.shape);
    c.run(Combine{.y = packed.t, .a = own});
    c.context_gather(by_rank.t, packed.t);
  }
  Buffer whole = c.alloc("keys and values of all ranks", own.dtype, by_rank.t.shape);
  c.run(ScatterRows{.y = whole.t, .x = by_rank.t, .rows = rows});
  return whole;
}

// Sums gradients of keys and values of whole sequences over the ranks; each rank gets the sums of its rows.
void scatter(Ctx& c, const Tensor& dqkv, Buffer whole, const Tensor& rows, const AttentionShape& s) {
  const Tensor own = keys_and_values(dqkv, s);
  const Buffer by_rank = c.alloc("gradients of keys and values by rank", own.dtype, whole.t.shape);
  c.run(GatherRows{.y = by_rank.t, .x = whole.t, .rows = rows});
  whole = {};
  const Buffer sums = c.alloc("gradients of a rank's keys and values", own.dtype, own.shape);
  c.context_scatter(sums.t, by_rank.t);
  c.run(Combine{.y = own, .a = sums.t});
}

}  // namespace

std::vector<int32_t> ContextPart::rows_of_ranks() const {
  std::vector<int32_t> all;
  for (int64_t r = 0; r < ranks; ++r)
    for (const int64_t h : {0, 1})
      for (int64_t s = 0; s < sequences; ++s)
        for (int64_t i = 0; i < piece_length(); ++i)
          all.push_back(narrow<int32_t>(s * length + piece(r, h) * piece_length() + i));
  return all;
}

std::vector<std::byte> ContextPart::cut_rows(const std::vector<int32_t>& rows_of_ranks, const void* whole,
                                             size_t row_bytes) const {
  std::vector<std::byte> own(size_t(rows()) * row_bytes);
  for (int64_t i = 0; i < rows(); ++i) {
    const auto from = size_t(rows_of_ranks[size_t(rank * rows() + i)]);
    std::memcpy(own.data() + size_t(i) * row_bytes, static_cast<const std::byte*>(whole) + from * row_bytes, row_bytes);
  }
  return own;
}

std::vector<Span> ContextPart::cut(const std::vector<Span>& whole) const {
  std::vector<Span> own;
  for (const int64_t h : {0, 1}) {
    for (const Span& span : whole) {
      const int64_t sequence = span.q_begin / length, before = sequence * length + piece(rank, h) * piece_length();
      const auto begin = int32_t(std::max<int64_t>(span.q_begin, before));
      const auto end = int32_t(std::min<int64_t>(span.q_begin + span.q_len, before + piece_length()));
      if (begin >= end) {
        own.push_back({});
        continue;
      }
      Span part = span;
      part.q_begin = int32_t(sequence * piece_length() + begin - before);
      part.q_len = end - begin;
      part.q_pos = span.q_pos + begin - span.q_begin;
      part.k_len = std::clamp(part.q_pos + part.q_len - span.k_pos, 0, span.k_len);  // causal: no later keys
      own.push_back(part);
    }
  }
  return own;
}

// Computes the two pieces one after the other: AttentionBwd writes a key's gradients for one span instead of adding to
// them, and both pieces of a document see its first keys.
Var attention_of_parts(Net n, Var qkv, const Batch& batch, AttentionShape shape, int layer, Param sinks) {
  Ctx& c = n.c;
  CHECK(!batch.cache, "a key/value cache is of whole sequences");
  const std::string block = block_subject(n, layer);
  const CollectiveSubject subject(block);
  const int64_t rows = qkv.t().rows();
  Buffer y = c.alloc("attention.y", {rows, shape.heads * shape.head_dim});
  Buffer lse = c.alloc("attention.lse", DType::f32, {rows, shape.heads});
  {
    const Buffer kv = gather(c, qkv.t(), batch.context_rows, shape);
    for (const int64_t h : {0, 1})
      c.run(AttentionFwd{.y = half(y.t, h),
                         .lse = half(lse.t, h),
                         .q = half(queries(qkv.t(), shape), h),
                         .k = keys(kv.t, shape),
                         .v = values(kv.t, shape),
                         .spans = half(batch.spans, h),
                         .shape = shape,
                         .top = max_attention_logits(c, shape, layer),
                         .sequences = batch.sequences});
  }
  add_sinks(n, y.t, lse.t, sinks);
  Var out = c.var(y);
  out.producer_keeps_it();
  c.record("attention", [&params = n.params, sinks, kept = qkv.keep(), y, lse, batch, shape, block, sx = qkv.slot(),
                         s = out.slot()](Ctx& cc) {
    const CollectiveSubject of_backward(block);
    const Buffer dy = cc.take(s), d = cc.alloc("attention.dqkv", kept.t.shape);
    add_sinks_gradient({cc, params}, dy.t, y.t, lse.t, sinks);
    std::array<Buffer, 2> dkv;
    {
      const Buffer kv = gather(cc, kept.t, batch.context_rows, shape);
      for (const int64_t h : {0, 1}) {
        Buffer& sums = dkv[size_t(h)] = cc.alloc("gradients of keys and values", kv.t.dtype, kv.t.shape);
        cc.run(AttentionBwd{.dq = half(queries(d.t, shape), h),
                            .dk = keys(sums.t, shape),
                            .dv = values(sums.t, shape),
                            .dy = half(dy.t, h),
                            .y = half(y.t, h),
                            .lse = half(lse.t, h),
                            .q = half(queries(kept.t, shape), h),
                            .k = keys(kv.t, shape),
                            .v = values(kv.t, shape),
                            .spans = half(batch.spans, h),
                            .shape = shape,
                            .sequences = batch.sequences});
      }
    }
    cc.run(Add{.y = dkv[0].t, .a = dkv[0].t, .b = dkv[1].t});
    dkv[1] = {};
    scatter(cc, d.t, std::move(dkv[0]), batch.context_rows, shape);
    cc.put(sx, d);
  });
  return out;
}

}  // namespace athanor
