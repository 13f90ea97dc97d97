#include "nn/adapters.h"
#include "nn/context.h"
#include "nn/linear_gemms.h"

namespace athanor {
namespace {

// The q, k and v column blocks of packed [N, (H + 2K) D].
struct Packed {
  Tensor q, k, v;
  Packed(const Tensor& qkv, const AttentionShape& s) {
    const int64_t qc = s.heads * s.head_dim, kc = s.kv_heads * s.head_dim;
    q = qkv.columns(0, qc);
    k = qkv.columns(qc, qc + kc);
    v = qkv.columns(qc + kc, qc + 2 * kc);
  }
};

}  // namespace

Rope rotation(const Tensor& qkv, const Batch& batch, Tensor cos_sin, const AttentionShape& s, bool inverse) {
  const int64_t heads = s.heads + s.kv_heads;
  return {.x = qkv.columns(0, heads * s.head_dim),
          .cos_sin = cos_sin,
          .positions = batch.positions,
          .heads = heads,
          .head_dim = s.head_dim,
          .inverse = inverse};
}

Tensor max_attention_logits(const Ctx& c, const AttentionShape& shape, int layer) {
  if (!c.max_attention_logits) return {};
  return {c.max_attention_logits.at(layer * shape.heads), DType::f32, {shape.heads}};
}

Var rope(Net n, Var qkv, const Batch& batch, Tensor cos_sin, AttentionShape shape) {
  n.c.run(rotation(qkv.t(), batch, cos_sin, shape, false));  // in place: producers save their inputs, not qkv
  return qkv;
}

namespace {

// Records the inverse rotation of the gradient of qkv as a separate op.
Var rotated(Net n, Var qkv, const Batch& batch, Tensor cos_sin, AttentionShape shape) {
  if (!cos_sin) return qkv;
  Var out = n.c.var(qkv.keep());
  n.c.record("rope", [batch, cos_sin, shape, sx = qkv.slot(), s = out.slot()](Ctx& c) {
    Buffer d = c.take(s);
    c.run(rotation(d.t, batch, cos_sin, shape, true));
    c.put(sx, std::move(d));
  });
  return out;
}

void run(Ctx& c, const AttentionBwd& op) {
  if (!op.cos_sin || c.ops.fuses(op)) return c.run(op);
  in_parts(op, [&](const auto& part) { c.run(part); });
}

}  // namespace

void add_sinks(Net n, const Tensor& y, const Tensor& lse, Param sinks) {
  if (sinks) n.c.run(AttentionSinks{.y = y, .lse = lse, .sinks = n.params.value(sinks)});
}
void add_sinks_gradient(Net n, const Tensor& dy, const Tensor& y, const Tensor& lse, Param sinks) {
  if (!sinks) return;
  const Buffer d = gradient_of(n, sinks);
  n.c.run(AttentionSinksBwd{.dsinks = d.t, .dy = dy, .y = y, .lse = lse, .sinks = n.params.value(sinks)});
}

// With context parallelism or attention sinks several launches compute y, so none of them can store its amax.
Var attention(Net n, Var qkv, const Batch& batch, Tensor cos_sin, AttentionShape shape, int layer, const Linear& reader,
              Param sinks) {
  Ctx& c = n.c;
  if (batch.piece_length > 0 || batch.context_rows) {
    qkv = rotated(n, std::move(qkv), batch, cos_sin, shape);
    return batch.piece_length > 0 ? attention_in_ring(n, std::move(qkv), batch, shape, layer, sinks)
                                  : attention_of_parts(n, std::move(qkv), batch, shape, layer, sinks);
  }
  Packed in(qkv.t(), shape);
  if (batch.cache) {
    CHECK(!c.recording(), "a key/value cache is for sampling, not for training");
    const Tensor ck = batch.cache->k[size_t(layer)], cv = batch.cache->v[size_t(layer)];
    c.run(ScatterRows{.y = ck, .x = in.k, .rows = batch.cache_rows});
    c.run(ScatterRows{.y = cv, .x = in.v, .rows = batch.cache_rows});
    in.k = ck;
    in.v = cv;
  }
  const int64_t rows = qkv.t().rows();
  Buffer y = c.alloc("attention.y", {rows, shape.heads * shape.head_dim});
  Buffer lse = c.alloc("attention.lse", DType::f32, {rows, shape.heads});
  if (!sinks) y.amax = wanted_amax(n, reader, Matrix::x);
  c.run(AttentionFwd{.y = y.t,
                     .lse = lse.t,
                     .q = in.q,
                     .k = in.k,
                     .v = in.v,
                     .spans = batch.spans,
                     .shape = shape,
                     .top = max_attention_logits(c, shape, layer),
                     .sequences = batch.sequences,
                     .amax = y.amax});
  add_sinks(n, y.t, lse.t, sinks);
  Var out = c.var(y);
  out.producer_keeps_it();
  c.record("attention", [&params = n.params, sinks, kept = qkv.keep(), y, lse, spans = batch.spans,
                         sequences = batch.sequences, shape, cos_sin, positions = cos_sin ? batch.positions : Tensor{},
                         sx = qkv.slot(), s = out.slot()](Ctx& cc) {
    Buffer dy = cc.take(s), d = cc.alloc("attention.dqkv", kept.t.shape);
    add_sinks_gradient({cc, params}, dy.t, y.t, lse.t, sinks);
    const Packed x(kept.t, shape), dx(d.t, shape);
    run(cc, AttentionBwd{.dq = dx.q,
                         .dk = dx.k,
                         .dv = dx.v,
                         .dy = dy.t,
                         .y = y.t,
                         .lse = lse.t,
                         .q = x.q,
                         .k = x.k,
                         .v = x.v,
                         .spans = spans,
                         .shape = shape,
                         .cos_sin = cos_sin,
                         .positions = positions,
                         .sequences = sequences});
    cc.put(sx, std::move(d));
  });
  return out;
}

}  // namespace athanor
