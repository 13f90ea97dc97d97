#include "nn/products.h"

namespace athanor {
namespace {

bool out_in(const Linear& layer) { return layer.order == WeightOrder::out_in; }

}  // namespace

int64_t outputs_of(Net n, const Linear& layer) {
  const Tensor w = n.params.value(layer.w);
  return out_in(layer) ? w.rows() : w.cols();
}

Gemm linear_product(Net n, const Linear& layer, Tensor y, Tensor x) {
  return {.d = y,
          .a = x,
          .b = n.params.value(layer.w),
          .bias = layer.b ? n.params.value(layer.b) : Tensor{},
          .tb = out_in(layer),
          .tf32 = n.c.recipe.tf32};
}

Gemm input_gradient(Net n, const Linear& layer, Tensor dx, Tensor dy) {
  return {.d = dx, .a = dy, .b = n.params.value(layer.w), .tb = !out_in(layer), .tf32 = n.c.recipe.tf32};
}

Gemm weight_gradient(Net n, const Linear& layer, Tensor dy, Tensor x) {
  Gemm op{.d = n.params.grad(layer.w),
          .a = out_in(layer) ? dy : x,
          .b = out_in(layer) ? x : dy,
          .ta = true,
          .accumulate = true,
          .tf32 = n.c.recipe.tf32};
  if (layer.b) {
    op.epilogue = out_in(layer) ? Epilogue::sum_a : Epilogue::sum_b;
    op.aux = n.params.grad(layer.b);
  }
  return op;
}

Var linear(Net n, Var x, const Linear& layer, Var residual) {
  Ctx& c = n.c;
  Buffer y = c.alloc("linear.y", {x.t().rows(), outputs_of(n, layer)});
  Gemm product = linear_product(n, layer, y.t, x.t());
  if (residual) {
    product.epilogue = Epilogue::add;
    product.aux = residual.t();
  }
  c.run(product);
  Var out = c.var(std::move(y));
  c.record("linear", [&params = n.params, layer, saved = c.save(x), sx = x.slot(), sr = residual ? residual.slot() : -1,
                      s = out.slot()](Ctx& cc) {
    const Net net{cc, params};
    Buffer dy = cc.take(s), xb = saved.get(cc);
    cc.run(weight_gradient(net, layer, dy.t, xb.t));
    Buffer dx = cc.alloc("linear.dx", xb.t.shape);
    xb = {};
    cc.run(input_gradient(net, layer, dx.t, dy.t));
    cc.put(sx, std::move(dx));
    if (sr >= 0) cc.put(sr, std::move(dy));  // d(residual) = dy
  });
  return out;
}

}  // namespace athanor
