#include "nn/layers.h"

namespace athanor {

// y = x W^T + b, dx = dy W, dW += dy^T x, db += column sums of dy (W [out, in]; transposed for [in, out]).
Var linear(Net n, Var x, const Linear& layer) {
  Ctx& c = n.c;
  const bool out_in = layer.order == WeightOrder::out_in;
  const Tensor w = n.params.value(layer.w);
  Buffer y = c.alloc("linear.y", {x.t().rows(), out_in ? w.rows() : w.cols()});
  c.run(Gemm{.d = y.t,
             .a = x.t(),
             .b = w,
             .bias = layer.b ? n.params.value(layer.b) : Tensor{},
             .tb = out_in,
             .tf32 = c.recipe.tf32});
  Var out = c.var(std::move(y));
  c.record("linear", [&params = n.params, layer, out_in, saved = c.save(x), sx = x.slot(), s = out.slot()](Ctx& cc) {
    Buffer dy = cc.take(s), xb = saved.get(cc);
    const bool tf32 = cc.recipe.tf32;
    const Tensor dw = params.grad(layer.w);
    if (out_in)
      cc.run(Gemm{.d = dw, .a = dy.t, .b = xb.t, .ta = true, .accumulate = true, .tf32 = tf32});
    else
      cc.run(Gemm{.d = dw, .a = xb.t, .b = dy.t, .ta = true, .accumulate = true, .tf32 = tf32});
    if (layer.b) cc.run(ColumnSum{.out = params.grad(layer.b), .x = dy.t});
    Buffer dx = cc.alloc("linear.dx", xb.t.shape);
    xb = {};
    cc.run(Gemm{.d = dx.t, .a = dy.t, .b = params.value(layer.w), .tb = !out_in, .tf32 = tf32});
    cc.put(sx, std::move(dx));
  });
  return out;
}

}  // namespace athanor
