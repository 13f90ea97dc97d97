#include <optional>

#include "nn/products.h"

namespace athanor {
namespace {

// z and y = gelu(z). In 8 bits the two are made one after the other on every backend.
void run_gelu_product(Net n, const Linear& up, const Linear& down, Buffer& y, Tensor z, const Factor& x) {
  Product p = linear_product(n, up, y.t, x);
  if (p.a.is_codes()) {
    p.op.d = z;
    run(n.c, p);
    y.amax = wanted_largest(n, down, Matrix::x);
    return n.c.run(GeluFwd{.y = y.t, .x = z, .amax = y.amax});
  }
  p.op.epilogue = Epilogue::gelu;
  p.op.aux = z;
  run(n.c, p);
}

void run_gelu_again(Net n, const Linear& up, Tensor y, Tensor z, const Factor& x) {
  if (in_eight_bits(n, up)) return n.c.run(GeluFwd{.y = y, .x = z});
  Product p = linear_product(n, up, y, x);
  p.op.epilogue = Epilogue::gelu;
  p.op.aux = z;
  p.op.recompute = true;
  run(n.c, p);
}

// dz = (dy W_down) gelu'(z)
void run_gradient_through_gelu(Net n, const Linear& up, const Linear& down, Buffer& dz, Tensor z, const Factor& dy) {
  Product p = input_gradient(n, down, dz.t, dy);
  if (p.a.is_codes()) {
    run(n.c, p);
    dz.amax = wanted_largest(n, up, Matrix::dy);
    return n.c.run(GeluBwd{.dx = dz.t, .dy = dz.t, .x = z, .amax = dz.amax});
  }
  p.op.epilogue = Epilogue::gelu_gradient;
  p.op.aux = z;
  run(n.c, p);
}

}  // namespace

// z = x W_up^T + b_up, y = gelu(z), out = y W_down^T + b_down + residual. Backward keeps x, z and y, or recomputes x
// and y: y is cheap to recompute from z unless the product computed it from sums before rounding.
Var gelu_mlp(Net n, Var x, const Linear& up, const Linear& down, Var residual) {
  Ctx& c = n.c;
  const Shape in = x.t().shape;
  Buffer all = input_rows(n, up, x.keep());
  const Shape inner{all.t.rows(), outputs_of(n, up)};  // [N, F]
  Buffer z = c.alloc("mlp.z", inner), y = c.alloc("mlp.gelu", inner);
  Factor read_x = factor(n, up, Operand::forward_x, all, SavedInput::keeps_codes(n, up, x));
  all = {};
  run_gelu_product(n, up, down, y, z.t, read_x);
  SavedInput saved(n, up, x, read_x);
  read_x = {};
  Buffer out = c.alloc("mlp.out", residual.t().shape);
  Factor kept;  // of y
  const Tensor largest = y.amax;
  {
    const bool keeps = c.recording() && !c.selective;
    const Factor read_y = factor(n, down, Operand::forward_x, y, keeps);
    run_with_residual(n, down, out.t, read_y, residual.t());
    if (keeps) kept = weight_factor(n, down, y, read_y);
  }
  y = {};
  Var result = c.var(std::move(out));
  result.asks_largest(wanted_largest(n, down, Matrix::dy));
  c.record("gelu_mlp", [&params = n.params, up, down, in, saved = std::move(saved), z, kept, largest, sx = x.slot(),
                        sr = residual.slot(), s = result.slot()](Ctx& cc) mutable {
    const Net net{cc, params};
    Buffer d = cc.take(s);
    const bool beside = sums_beside(net, up) && kept.data;
    Factor xf = beside ? Factor{} : saved.get(net, up);
    if (!kept.data) {
      Buffer again = cc.alloc("mlp.gelu again", z.t.shape);
      run_gelu_again(net, up, again.t, z.t, xf);
      again.amax = largest;  // still that of y
      kept = factor(net, down, Operand::weight_x, again);
    }
    Buffer all_d = gradient_rows(net, down, d);
    std::optional<RowsOfAll> later;
    if (beside) later = input_rows_beside(net, up, saved.own_rows(cc));
    Factor read_d = run_weight_gradient(net, down, all_d, kept);
    all_d = {};
    kept = {};
    Buffer dz = cc.alloc("mlp.dz", z.t.shape);
    run_gradient_through_gelu(net, up, down, dz, z.t, read_d);
    read_d = {};
    z = {};
    Buffer dx = run_gradients(net, up, "mlp.dx", in, dz, std::move(xf), later ? &*later : nullptr);
    cc.put(sx, std::move(dx));
    cc.put(sr, std::move(d));  // d(residual) = d(out)
  });
  return result;
}

// gu = x W^T, y = silu(gate) up of gu = [gate | up], fused into the product where the backend may. Backward keeps gu.
Var swiglu(Net n, Var x, const Linear& layer, const Linear& reader) {
  Ctx& c = n.c;
  Buffer y;
  Var gate_up = linear(n, std::move(x), layer, {}, &y);
  const Shape half{gate_up.t().rows(), gate_up.t().cols() / 2};
  Buffer kept = gate_up.keep();
  if (!y) {
    y = c.alloc("swiglu.y", half);
    y.amax = wanted_largest(n, reader, Matrix::x);
    c.run(SwigluFwd{.y = y.t, .gu = kept.t, .amax = y.amax});
  }
  Remake remake;  // recomputes the output from the input, which backward keeps anyway
  if (c.recording() && c.selective)
    remake = std::make_shared<UniqueFn<Buffer(Ctx&)>>([kept, half, amax = y.amax](Ctx& cc) {
      Buffer again = cc.alloc("swiglu.y again", half);
      cc.run(SwigluFwd{.y = again.t, .gu = kept.t});
      again.amax = amax;  // still that of y
      return again;
    });
  Var out = c.var(std::move(y), std::move(remake));
  c.record("swiglu", [kept = std::move(kept), asked = gate_up.asked_largest(), sx = gate_up.slot(),
                      s = out.slot()](Ctx& cc) mutable {
    Buffer dy = cc.take(s);
    kept.amax = asked;
    cc.run(SwigluBwd{.dgu = kept.t, .dy = dy.t, .gu = kept.t, .amax = asked});  // in place: no later reader
    cc.put(sx, kept);
  });
  return out;
}

}  // namespace athanor
