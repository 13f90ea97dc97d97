#include "nn/adapters.h"
#include "nn/linear_gemms.h"

namespace athanor {
namespace {

Tensor gain_of(const ParamStore& params, const Norm& norm, int64_t size) {
  if (norm.w) return params.value(norm.w);
  return {norm.ones->data, norm.ones->dtype, {size}};
}

// Buffer to which the op adds the gain's gradient: the parameter's gradient, or scratch memory that nothing reads.
struct GainGradient {
  Buffer buffer;
  Tensor t;
  GainGradient(Ctx& c, ParamStore& params, const Norm& norm, int64_t size)
      : buffer(norm.w ? gradient_of({c, params}, norm.w) : c.alloc("gradient of ones", DType::f32, {size})),
        t(buffer.t) {
    if (!norm.w) c.run(Fill{.x = t});
  }
};

}  // namespace

std::pair<Var, Var> fork_norm(Net n, Var x, const Norm& norm, const Linear* reader) {
  Ctx& c = n.c;
  const bool layer = norm.kind == NormKind::layer;
  const Shape full = x.t().shape, column{full[0]};
  Buffer h = x.keep(), y = c.alloc("norm.y", full);
  Buffer mean = layer ? c.alloc("norm.mean", DType::f32, column) : Buffer{};
  Buffer rstd = c.alloc("norm.rstd", DType::f32, column);
  y.amax = reader ? wanted_amax(n, *reader, Matrix::x) : Tensor{};
  c.run(NormFwd{.kind = norm.kind,
                .y = y.t,
                .mean = mean.t,
                .rstd = rstd.t,
                .h = h.t,
                .w = gain_of(n.params, norm, full[1]),
                .b = layer ? n.params.value(norm.b) : Tensor{},
                .eps = norm.eps,
                .amax = y.amax});
  Remake remake;
  if (c.recording() && c.selective)
    remake = std::make_shared<UniqueFn<Buffer(Ctx&)>>(
        [&params = n.params, norm, layer, h, mean, rstd, amax = y.amax](Ctx& cc) {
          Buffer again = cc.alloc("norm.y again", h.t.shape);
          again.amax = amax;  // amax of y computed in forward is still valid
          cc.run(NormApply{.kind = norm.kind,
                           .y = again.t,
                           .h = h.t,
                           .mean = mean.t,
                           .rstd = rstd.t,
                           .w = gain_of(params, norm, h.t.cols()),
                           .b = layer ? params.value(norm.b) : Tensor{}});
          return again;
        });
  Var vh = c.var(h), vy = c.var(std::move(y), std::move(remake));
  c.record("norm", [&params = n.params, norm, layer, h, mean, rstd, asked = x.asked_amax(), sh = vh.slot(),
                    sy = vy.slot(), sx = x.slot()](Ctx& cc) {
    Buffer dy = cc.take(sy), dh = cc.own(cc.take(sh));
    dh.amax = asked;
    const GainGradient dw(cc, params, norm, h.t.cols());
    const Buffer db = layer ? gradient_of({cc, params}, norm.b) : Buffer{};
    cc.run(NormBwd{.kind = norm.kind,
                   .dh = dh.t,
                   .dw = dw.t,
                   .db = db.t,
                   .dy = dy.t,
                   .h = h.t,
                   .mean = mean.t,
                   .rstd = rstd.t,
                   .w = gain_of(params, norm, h.t.cols()),
                   .amax = dh.amax});
    cc.put(sx, std::move(dh));
  });
  return {std::move(vh), std::move(vy)};
}

Var finish(Ctx& c, std::pair<Var, Var> residual_and_norm) {
  auto& [residual, x] = residual_and_norm;
  if (c.recording()) {
    c.record("finish", [slot = residual.slot(), like = residual.t().shape](Ctx& cc) {
      Buffer zero = cc.alloc("finish.dh", like);
      cc.run(Fill{.x = zero.t});
      cc.put(slot, std::move(zero));
    });
  }
  return std::move(x);
}

namespace {

// The heads that the ops of qk_norm() see, and of how many tensor-parallel ranks each is.
struct NormedHeads {
  int64_t heads, kv_heads, head_dim;
  int64_t ranks = 1;
};

NormedHeads normed_heads(const ParamStore& params, const AttentionShape& shape, HeadsOfNorm heads) {
  if (heads == HeadsOfNorm::each) return {shape.heads, shape.kv_heads, shape.head_dim};
  CHECK(shape.heads == shape.kv_heads, "all ", shape.heads, " query heads as one, and ", shape.kv_heads, " key heads");
  return {1, 1, shape.head_dim * shape.heads, params.tensor().ranks};
}

// Runs the op, whose sums are then those of all ranks that have parts of a head; empty if there are no others.
Buffer sums_of_heads(Net n, const Norm& q, const NormedHeads& of, QkNormSums op) {
  if (of.ranks == 1) return {};
  const CollectiveSubject subject(n.params.spec(q.w).name);
  Buffer sums = n.c.alloc("qk_norm.sums", DType::f32, {op.x.rows(), of.heads + of.kv_heads});
  op.sums = sums.t, op.heads = of.heads, op.kv_heads = of.kv_heads;
  n.c.run(op);
  n.c.tensor_sum(sums.t);
  return sums;
}

// Completes the op and runs it.
void run_qk_norm_gradient(Net n, const Norm& q, const Norm& k, const NormedHeads& of, QkNormBwd op) {
  op.wq = gain_of(n.params, q, of.head_dim), op.wk = gain_of(n.params, k, of.head_dim);
  op.heads = of.heads, op.kv_heads = of.kv_heads, op.parts = of.ranks;
  const GainGradient dwq(n.c, n.params, q, of.head_dim), dwk(n.c, n.params, k, of.head_dim);
  const Buffer sums = sums_of_heads(n, q, of, {.dy = op.dy, .x = op.x, .wq = op.wq, .wk = op.wk});
  op.dwq = dwq.t, op.dwk = dwk.t, op.sums = sums.t;
  n.c.run(op);
}

}  // namespace

Var qk_norm(Net n, Var qkv, const Norm& q, const Norm& k, AttentionShape shape, HeadsOfNorm heads) {
  Ctx& c = n.c;
  const NormedHeads of = normed_heads(n.params, shape, heads);
  const Tensor wq = gain_of(n.params, q, of.head_dim), wk = gain_of(n.params, k, of.head_dim);
  Buffer y = c.alloc("qk_norm.y", qkv.t().shape);
  Buffer rstd = c.alloc("qk_norm.rstd", DType::f32, {qkv.t().rows(), of.heads + of.kv_heads});
  const Buffer sums = sums_of_heads(n, q, of, {.x = qkv.t(), .wq = wq, .wk = wk});
  c.run(QkNormFwd{.y = y.t,
                  .rstd = rstd.t,
                  .x = qkv.t(),
                  .wq = wq,
                  .wk = wk,
                  .heads = of.heads,
                  .kv_heads = of.kv_heads,
                  .eps = q.eps,
                  .sums = sums.t,
                  .parts = of.ranks});
  Var out = c.var(std::move(y));
  c.record("qk_norm", [&params = n.params, x = qkv.keep(), rstd, q, k, of, sx = qkv.slot(), s = out.slot()](Ctx& cc) {
    Buffer dy = cc.take(s), dx = cc.alloc("qk_norm.dx", x.t.shape);
    run_qk_norm_gradient({cc, params}, q, k, of, {.dx = dx.t, .dy = dy.t, .x = x.t, .rstd = rstd.t});
    cc.put(sx, std::move(dx));
  });
  return out;
}

}  // namespace athanor
