#include "nn/adapters.h"
#include "nn/products.h"

namespace athanor {

std::pair<Var, Var> fork_norm(Net n, Var x, const Norm& norm, const Linear* reader) {
  Ctx& c = n.c;
  const bool layer = norm.kind == NormKind::layer;
  const Shape full = x.t().shape, column{full[0]};
  Buffer h = x.keep(), y = c.alloc("norm.y", full);
  Buffer mean = layer ? c.alloc("norm.mean", DType::f32, column) : Buffer{};
  Buffer rstd = c.alloc("norm.rstd", DType::f32, column);
  y.amax = reader ? wanted_largest(n, *reader, Matrix::x) : Tensor{};
  c.run(NormFwd{.kind = norm.kind,
                .y = y.t,
                .mean = mean.t,
                .rstd = rstd.t,
                .h = h.t,
                .w = n.params.value(norm.w),
                .b = layer ? n.params.value(norm.b) : Tensor{},
                .eps = norm.eps,
                .amax = y.amax});
  Remake remake;
  if (c.recording() && c.selective)
    remake = std::make_shared<UniqueFn<Buffer(Ctx&)>>(
        [&params = n.params, norm, layer, h, mean, rstd, amax = y.amax](Ctx& cc) {
          Buffer again = cc.alloc("norm.y again", h.t.shape);
          again.amax = amax;  // still that of y
          cc.run(NormApply{.kind = norm.kind,
                           .y = again.t,
                           .h = h.t,
                           .mean = mean.t,
                           .rstd = rstd.t,
                           .w = params.value(norm.w),
                           .b = layer ? params.value(norm.b) : Tensor{}});
          return again;
        });
  Var vh = c.var(h), vy = c.var(std::move(y), std::move(remake));
  c.record("norm", [&params = n.params, norm, layer, h, mean, rstd, asked = x.asked_largest(), sh = vh.slot(),
                    sy = vy.slot(), sx = x.slot()](Ctx& cc) {
    Buffer dy = cc.take(sy), dh = cc.take(sh);
    dh.amax = asked;
    const Buffer dw = gradient_of({cc, params}, norm.w), db = layer ? gradient_of({cc, params}, norm.b) : Buffer{};
    cc.run(NormBwd{.kind = norm.kind,
                   .dh = dh.t,
                   .dw = dw.t,
                   .db = db.t,
                   .dy = dy.t,
                   .h = h.t,
                   .mean = mean.t,
                   .rstd = rstd.t,
                   .w = params.value(norm.w),
                   .amax = dh.amax});
    cc.put(sx, std::move(dh));
  });
  return {std::move(vh), std::move(vy)};
}

Var qk_norm(Net n, Var qkv, Param wq, Param wk, AttentionShape shape, float eps) {
  Ctx& c = n.c;
  Buffer y = c.alloc("qk_norm.y", qkv.t().shape);
  Buffer rstd = c.alloc("qk_norm.rstd", DType::f32, {qkv.t().rows(), shape.heads + shape.kv_heads});
  c.run(QkNormFwd{.y = y.t,
                  .rstd = rstd.t,
                  .x = qkv.t(),
                  .wq = n.params.value(wq),
                  .wk = n.params.value(wk),
                  .heads = shape.heads,
                  .kv_heads = shape.kv_heads,
                  .eps = eps});
  Var out = c.var(std::move(y));
  c.record("qk_norm",
           [&params = n.params, x = qkv.keep(), rstd, wq, wk, shape, sx = qkv.slot(), s = out.slot()](Ctx& cc) {
             Buffer dy = cc.take(s), dx = cc.alloc("qk_norm.dx", x.t.shape);
             const Buffer dwq = gradient_of({cc, params}, wq), dwk = gradient_of({cc, params}, wk);
             cc.run(QkNormBwd{.dx = dx.t,
                              .dwq = dwq.t,
                              .dwk = dwk.t,
                              .dy = dy.t,
                              .x = x.t,
                              .rstd = rstd.t,
                              .wq = params.value(wq),
                              .wk = params.value(wk),
                              .heads = shape.heads,
                              .kv_heads = shape.kv_heads});
             cc.put(sx, std::move(dx));
           });
  return out;
}

}  // namespace athanor
