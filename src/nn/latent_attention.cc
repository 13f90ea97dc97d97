#include "nn/latent_attention.h"

#include "nn/rows.h"

namespace athanor {
namespace {

// Copies the first columns and the others to tensors of their own.
std::pair<Var, Var> split_columns(Ctx& c, Var x, int64_t at) {
  const int64_t rows = x.t().rows(), columns = x.t().cols();
  Buffer first = c.alloc("first columns", {rows, at}), rest = c.alloc("other columns", {rows, columns - at});
  c.run(GatedSum{.y = first.t, .x = x.t().columns(0, at), .z = {}});
  c.run(GatedSum{.y = rest.t, .x = x.t().columns(at, columns), .z = {}});
  Var a = c.var(std::move(first)), b = c.var(std::move(rest));
  c.record("split_columns", [at, rows, columns, sx = x.slot(), sa = a.slot(), sb = b.slot()](Ctx& cc) {
    const Buffer da = cc.take(sa), db = cc.take(sb);
    Buffer dx = cc.alloc("columns.grad", {rows, columns});
    cc.run(GatedSum{.y = dx.t.columns(0, at), .x = da.t, .z = {}});
    cc.run(GatedSum{.y = dx.t.columns(at, columns), .x = db.t, .z = {}});
    cc.put(sx, std::move(dx));
  });
  return {std::move(a), std::move(b)};
}

// Builds packed q, k and v. q and kv have all rows; rope_key has this rank's rows of the residual stream, and each rank
// has the part of its gradient that its heads give.
Var packed_heads(Net n, Var q, Var kv, Var rope_key, const LatentAttention& w, const Batch& batch, Tensor cos_sin,
                 const LatentShape& shape) {
  Ctx& c = n.c;
  const CollectiveSubject subject(n.params.spec(w.kv_a.w).name);
  const Buffer key = all_rows(c, rope_key.keep());
  Buffer qkv = c.alloc("latent_heads.qkv", {q.t().rows(), 3 * shape.heads * shape.head_dim()});
  c.run(LatentHeads{.qkv = qkv.t,
                    .q = q.t(),
                    .kv = kv.t(),
                    .rope_key = key.t,
                    .cos_sin = cos_sin,
                    .positions = batch.positions,
                    .shape = shape});
  Var out = c.var(std::move(qkv));
  c.record("latent_heads", [&params = n.params, a = w.kv_a.w, cos_sin, positions = batch.positions, shape,
                            of_q = q.t().shape, of_kv = kv.t().shape, of_key = rope_key.t().shape, sq = q.slot(),
                            sk = kv.slot(), sr = rope_key.slot(), s = out.slot()](Ctx& cc) {
    const CollectiveSubject gradient_of(params.spec(a).name);
    const Buffer d = cc.take(s);
    Buffer dq = cc.alloc("latent_heads.dq", of_q), dkv = cc.alloc("latent_heads.dkv", of_kv);
    Buffer dkey = cc.alloc("latent_heads.drope_key", of_key);
    PartsOfRows parts(cc, dkey.t);
    cc.run(LatentHeadsBwd{.dq = dq.t,
                          .dkv = dkv.t,
                          .drope_key = parts.t(),
                          .dqkv = d.t,
                          .cos_sin = cos_sin,
                          .positions = positions,
                          .shape = shape});
    parts.add_up(cc);
    cc.put(sq, std::move(dq));
    cc.put(sk, std::move(dkv));
    cc.put(sr, std::move(dkey));
  });
  return out;
}

}  // namespace

Var latent_heads(Net n, Var x, const LatentAttention& w, const Batch& batch, Tensor cos_sin, const LatentShape& shape) {
  Ctx& c = n.c;
  auto [of_q, of_kv] = fork(c, std::move(x));
  if (w.q_a.w) of_q = finish(c, fork_norm(n, linear(n, std::move(of_q), w.q_a), w.q_norm, &w.q));
  Var q = linear(n, std::move(of_q), w.q);  // [N, H D]
  Var latent_and_key = linear(n, std::move(of_kv), w.kv_a);
  const int64_t columns = latent_and_key.t().cols();
  auto [latent, rope_key] = split_columns(c, std::move(latent_and_key), columns - shape.rope);
  Var kv = linear(n, finish(c, fork_norm(n, std::move(latent), w.kv_norm, &w.kv_b)), w.kv_b);
  return packed_heads(n, std::move(q), std::move(kv), std::move(rope_key), w, batch, cos_sin, shape);
}

Var value_heads(Net n, Var y, const LatentShape& shape) {
  if (shape.value == shape.head_dim()) return y;
  Ctx& c = n.c;
  const int64_t rows = y.t().rows(), padded = shape.head_dim(), value = shape.value;
  const auto of_heads = [=, heads = shape.heads](const Tensor& t, int64_t columns) {
    return t.view({rows * heads, columns}).columns(0, value);
  };
  Buffer out = c.alloc("value_heads.y", {rows, shape.heads * value});
  out.amax = y.keep().amax;  // the padding is zeros
  c.run(GatedSum{.y = of_heads(out.t, value), .x = of_heads(y.t(), padded), .z = {}});
  Var narrow = c.var(std::move(out));
  c.record("value_heads", [=, like = y.t().shape, sy = y.slot(), s = narrow.slot()](Ctx& cc) {
    const Buffer d = cc.take(s);
    Buffer dy = cc.alloc("value_heads.dy", like);
    cc.run(Fill{.x = dy.t});
    cc.run(GatedSum{.y = of_heads(dy.t, padded), .x = of_heads(d.t, value), .z = {}});
    cc.put(sy, std::move(dy));
  });
  return narrow;
}

}  // namespace athanor
