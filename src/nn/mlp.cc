#include "nn/products.h"

namespace athanor {
namespace {

Gemm gelu_product(Net n, const Linear& up, Tensor y, Tensor z, Tensor x) {
  Gemm op = linear_product(n, up, y, x);
  op.epilogue = Epilogue::gelu;
  op.aux = z;
  return op;
}

}  // namespace

// z = x W_up^T + b_up, y = gelu(z), out = y W_down^T + b_down + residual. Backward keeps x, z and y, or recomputes x
// and y: y is cheap to recompute from z unless the product computed it from sums before rounding.
Var gelu_mlp(Net n, Var x, const Linear& up, const Linear& down, Var residual) {
  Ctx& c = n.c;
  const Shape inner{x.t().rows(), outputs_of(n, up)};  // [N, F]
  Buffer z = c.alloc("mlp.z", inner), y = c.alloc("mlp.gelu", inner);
  c.run(gelu_product(n, up, y.t, z.t, x.t()));
  Buffer out = c.alloc("mlp.out", residual.t().shape);
  Gemm product = linear_product(n, down, out.t, y.t);
  product.epilogue = Epilogue::add;
  product.aux = residual.t();
  c.run(product);
  if (c.selective) y = {};
  Var result = c.var(std::move(out));
  c.record("gelu_mlp", [&params = n.params, up, down, saved = c.save(x), z, y, sx = x.slot(), sr = residual.slot(),
                        s = result.slot()](Ctx& cc) mutable {
    const Net net{cc, params};
    Buffer d = cc.take(s), xb = saved.get(cc);
    if (!y) {
      y = cc.alloc("mlp.gelu again", z.t.shape);
      Gemm again = gelu_product(net, up, y.t, z.t, xb.t);
      again.recompute = true;
      cc.run(again);
    }
    cc.run(weight_gradient(net, down, d.t, y.t));
    y = {};
    Buffer dz = cc.alloc("mlp.dz", z.t.shape);
    Gemm through_gelu = input_gradient(net, down, dz.t, d.t);
    through_gelu.epilogue = Epilogue::gelu_gradient;
    through_gelu.aux = z.t;
    cc.run(through_gelu);
    z = {};
    cc.run(weight_gradient(net, up, dz.t, xb.t));
    Buffer dx = cc.alloc("mlp.dx", xb.t.shape);
    xb = {};
    cc.run(input_gradient(net, up, dx.t, dz.t));
    cc.put(sx, std::move(dx));
    cc.put(sr, std::move(d));  // d(residual) = d(out)
  });
  return result;
}

Var swiglu(Net n, Var gate_up) {
  Ctx& c = n.c;
  const auto op = [](Tensor y, Tensor gu) { return SwigluFwd{.y = y, .gu = gu}; };
  const Shape half{gate_up.t().rows(), gate_up.t().cols() / 2};
  Buffer y = c.alloc("swiglu.y", half), kept = gate_up.keep();
  c.run(op(y.t, kept.t));
  Remake remake;  // recomputes the output from the input, which backward keeps anyway
  if (c.recording() && c.selective)
    remake = std::make_shared<UniqueFn<Buffer(Ctx&)>>([kept, half, op](Ctx& cc) {
      Buffer again = cc.alloc("swiglu.y again", half);
      cc.run(op(again.t, kept.t));
      return again;
    });
  Var out = c.var(std::move(y), std::move(remake));
  c.record("swiglu", [kept = std::move(kept), sx = gate_up.slot(), s = out.slot()](Ctx& cc) {
    Buffer dy = cc.take(s);
    cc.run(SwigluBwd{.dgu = kept.t, .dy = dy.t, .gu = kept.t});  // in place: no later reader
    cc.put(sx, kept);
  });
  return out;
}

}  // namespace athanor
