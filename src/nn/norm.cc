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

Var qk_norm(Net n, Var qkv, const Norm& q, const Norm& k, AttentionShape shape) {
  Ctx& c = n.c;
  Buffer y = c.alloc("qk_norm.y", qkv.t().shape);
  Buffer rstd = c.alloc("qk_norm.rstd", DType::f32, {qkv.t().rows(), shape.heads + shape.kv_heads});
  c.run(QkNormFwd{.y = y.t,
                  .rstd = rstd.t,
                  .x = qkv.t(),
                  .wq = gain_of(n.params, q, shape.head_dim),
                  .wk = gain_of(n.params, k, shape.head_dim),
                  .heads = shape.heads,
                  .kv_heads = shape.kv_heads,
                  .eps = q.eps});
  Var out = c.var(std::move(y));
  c.record("qk_norm",
           [&params = n.params, x = qkv.keep(), rstd, q, k, shape, sx = qkv.slot(), s = out.slot()](Ctx& cc) {
             Buffer dy = cc.take(s), dx = cc.alloc("qk_norm.dx", x.t.shape);
             const GainGradient dwq(cc, params, q, shape.head_dim), dwk(cc, params, k, shape.head_dim);
             cc.run(QkNormBwd{.dx = dx.t,
                              .dwq = dwq.t,
                              .dwk = dwk.t,
                              .dy = dy.t,
                              .x = x.t,
                              .rstd = rstd.t,
                              .wq = gain_of(params, q, shape.head_dim),
                              .wk = gain_of(params, k, shape.head_dim),
                              .heads = shape.heads,
                              .kv_heads = shape.kv_heads});
             cc.put(sx, std::move(dx));
           });
  return out;
}

}  // namespace athanor
