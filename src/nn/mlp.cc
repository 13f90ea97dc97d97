#include <algorithm>
#include <optional>
#include <utility>

#include "nn/linear_gemms.h"

namespace athanor {
namespace {

// z = x W_up^T + b_up and y = gelu(z). Low-precision layers run two ops on every backend.
void run_gelu_gemm(Net n, const Linear& up, const Linear& down, Buffer& y, Tensor z, const GemmOperand& x) {
  LinearGemm p = output_gemm(n, up, y.t, x);
  if (p.a.is_quantized()) {
    p.op.d = z;
    run(n.c, p);
    y.amax = wanted_amax(n, down, Matrix::x);
    return n.c.run(GeluFwd{.y = y.t, .x = z, .amax = y.amax});
  }
  p.op.epilogue = Epilogue::gelu;
  p.op.aux = z;
  run(n.c, p);
}

// Uses the same row pieces as forward: GEMMs of other sizes may use other algorithms, which round differently.
void run_gelu_again(Net n, const Linear& up, Tensor y, Tensor z, const GemmOperand& x, int pieces) {
  if (in_low_precision(n, up)) return n.c.run(GeluFwd{.y = y, .x = z});
  LinearGemm p = output_gemm(n, up, y, x);
  p.op.epilogue = Epilogue::gelu;
  p.op.recompute = true;
  for (int i = 0; i < pieces; ++i) {
    p.op.d = piece_of(y, pieces, i), p.op.a = piece_of(x.data.t, pieces, i), p.op.aux = piece_of(z, pieces, i);
    run(n.c, p);
  }
}

// dz = (dy W_down) gelu'(z)
void run_gradient_through_gelu(Net n, const Linear& up, const Linear& down, Buffer& dz, Tensor z,
                               const GemmOperand& dy) {
  LinearGemm p = input_gradient_gemm(n, down, dz.t, dy);
  if (p.a.is_quantized()) {
    run(n.c, p);
    dz.amax = wanted_amax(n, up, Matrix::dy);
    return n.c.run(GeluBwd{.dx = dz.t, .dy = dz.t, .x = z, .amax = dz.amax});
  }
  p.op.epilogue = Epilogue::gelu_gradient;
  p.op.aux = z;
  run(n.c, p);
}

}  // namespace

namespace {

// y = forward(x), elementwise, as a separate layer: backward keeps x, from which selective recomputation recomputes y.
// backward(c, x, dy) writes dx in place over x or dy and returns it.
template <class Forward, class Backward>
Var element_wise(Ctx& c, const char* name, Var x, Buffer y, Forward forward, Backward backward) {
  forward(c, y, x.t());
  Remake remake;
  if (c.recording() && c.selective)
    remake = std::make_shared<UniqueFn<Buffer(Ctx&)>>([=, kept = x.keep(), shape = y.t.shape, amax = y.amax](Ctx& cc) {
      Buffer again = cc.alloc(cat(name, " again"), shape);
      forward(cc, again, kept.t);
      again.amax = amax;  // amax of y computed in forward is still valid
      return again;
    });
  Var out = c.var(std::move(y), std::move(remake));
  c.record(name, [backward, kept = x.keep(), sx = x.slot(), s = out.slot()](Ctx& cc) mutable {
    cc.put(sx, backward(cc, std::move(kept), cc.take(s)));
  });
  return out;
}

Var gelu(Net n, Var z) {
  Buffer y = n.c.alloc("mlp.gelu", z.t().shape);
  return element_wise(
      n.c, "gelu", std::move(z), std::move(y),
      [](Ctx& c, const Buffer& of, const Tensor& x) { c.run(GeluFwd{.y = of.t, .x = x}); },
      [](Ctx& c, const Buffer& x, Buffer dy) {
        c.run(GeluBwd{.dx = dy.t, .dy = dy.t, .x = x.t});
        return dy;
      });
}

// f(x), or with a gate f(gate) up, where x = [gate | up].
Var activation(Net n, Var x, const Mlp& layer) {
  Buffer y = n.c.alloc("activation.y", {x.t().rows(), x.t().cols() / (layer.gated ? 2 : 1)});
  y.amax = wanted_amax(n, layer.down, Matrix::x);
  const Tensor asked = x.asked_amax();
  return element_wise(
      n.c, "activation", std::move(x), std::move(y),
      [f = layer.f](Ctx& c, const Buffer& of, const Tensor& in) {
        c.run(ActivationFwd{.f = f, .y = of.t, .x = in, .amax = of.amax});
      },
      [f = layer.f, asked](Ctx& c, Buffer dx, const Buffer& dy) {  // in place of x, which has no later reader
        dx.amax = asked;
        c.run(ActivationBwd{.f = f, .dx = dx.t, .dy = dy.t, .x = dx.t, .amax = asked});
        return dx;
      });
}

}  // namespace

// z = x W_up^T + b_up, y = gelu(z), out = y W_down^T + b_down + residual. Backward keeps x, z and y, or recomputes x
// and y: y is cheap to recompute from z unless the GEMM computed it from sums before rounding. Frozen layers, and
// layers without a residual, run the three parts separately: their GEMMs lack the epilogues that are fused here.
Var gelu_mlp(Net n, Var x, const Linear& up, const Linear& down, Var residual) {
  if (is_frozen(n, up) || !residual) return linear(n, gelu(n, linear(n, std::move(x), up)), down, std::move(residual));
  Ctx& c = n.c;
  const Shape in = x.t().shape;
  RowsOfAll coming = input_rows(n, up, x.keep());
  const int pieces = std::max(1, coming.coming());
  Buffer all = coming.take();
  const Shape inner{all.t.rows(), outputs_of(n, up)};  // [N, F]
  Buffer z = c.alloc("mlp.z", inner), y = c.alloc("mlp.gelu", inner);
  GemmOperand read_x = input_operand(n, up, x, all);
  if (coming.coming() > 0) read_x.coming = &coming;  // quantized operands do not wait for rows
  all = {};
  run_gelu_gemm(n, up, down, y, z.t, read_x);
  SavedInput saved(n, up, x, read_x);
  read_x = {};
  Buffer out = c.alloc("mlp.out", residual.t().shape);
  GemmOperand kept;  // operand made from y
  const Tensor amax = y.amax;
  {
    const bool keeps = c.recording() && !c.selective;
    const GemmOperand read_y = operand_of(n, down, Operand::forward_x, y, keeps);
    run_with_residual(n, down, out.t, read_y, residual.t());
    if (keeps) kept = operand_of_weight_gradient(n, down, y, read_y);
  }
  y = {};
  Var result = c.var(std::move(out));
  result.asks_amax(wanted_amax(n, down, Matrix::dy));
  c.record("gelu_mlp", [&params = n.params, up, down, in, pieces, saved = std::move(saved), z, kept, amax,
                        sx = x.slot(), sr = residual.slot(), s = result.slot()](Ctx& cc) mutable {
    const Net net{cc, params};
    Buffer d = cc.take(s);
    RowsOfAll rows = gradient_rows(net, down, d);
    Buffer all_d = rows.take();
    const bool overlapped = overlaps_sums(net, up) && kept.data;
    GemmOperand xf = overlapped ? GemmOperand{} : saved.get(net, up);
    if (!kept.data) {
      Buffer again = cc.alloc("mlp.gelu again", z.t.shape);
      run_gelu_again(net, up, again.t, z.t, xf, pieces);
      again.amax = amax;  // amax of y computed in forward is still valid
      kept = operand_of(net, down, Operand::weight_x, again);
    }
    std::optional<RowsOfAll> later;
    if (overlapped) later = overlapped_input_rows(net, up, saved.own_rows(cc));
    GemmOperand read_d{.data = all_d, .scales = {}, .coming = &rows};
    const bool weight_last = rows.coming() > 0;
    if (!weight_last) read_d = run_weight_gradient(net, down, std::exchange(all_d, {}), std::exchange(kept, {}));
    Buffer dz = cc.alloc("mlp.dz", z.t.shape);
    run_gradient_through_gelu(net, up, down, dz, z.t, read_d);
    if (weight_last) (void)run_weight_gradient(net, down, std::exchange(all_d, {}), std::exchange(kept, {}));
    read_d = {};
    z = {};
    Buffer dx = run_gradients(net, up, "mlp.dx", in, RowsOfAll(dz), std::move(xf), later ? &*later : nullptr);
    cc.put(sx, std::move(dx));
    cc.put(sr, std::move(d));  // d(residual) = d(out)
  });
  return result;
}

namespace {

// [gate | up] = x W^T; gated.y = silu(gate) up, fused into the GEMM if the backend supports it.
Var run_gated(Net n, Var x, const Linear& layer, Gated& gated) {
  Var gate_up = linear(n, std::move(x), layer, &gated);
  if (gated.y) return gate_up;
  gated.y = n.c.alloc("swiglu.y", {gate_up.t().rows(), gate_up.t().cols() / 2});
  gated.y.amax = wanted_amax(n, gated.reader, Matrix::x);
  n.c.run(SwigluFwd{.y = gated.y.t, .gu = gate_up.t(), .amax = gated.y.amax});
  return gate_up;
}

// SwiGLU as a separate layer. Its gradient is passed to the backward of the GEMM, which keeps [gate | up].
Var swiglu(Net n, const Var& gate_up, Gated gated) {
  Ctx& c = n.c;
  Remake remake;  // recomputes the output from the input, which backward keeps anyway
  if (c.recording() && c.selective)
    remake = std::make_shared<UniqueFn<Buffer(Ctx&)>>(
        [kept = gate_up.keep(), half = gated.y.t.shape, amax = gated.y.amax](Ctx& cc) {
          Buffer again = cc.alloc("swiglu.y again", half);
          cc.run(SwigluFwd{.y = again.t, .gu = kept.t});
          again.amax = amax;  // amax of y computed in forward is still valid
          return again;
        });
  Var out = c.var(std::move(gated.y), std::move(remake));
  c.record("swiglu", [sx = gate_up.slot(), s = out.slot()](Ctx& cc) { cc.put(sx, cc.take(s)); });
  return out;
}

// Returns the input-gradient GEMM whose epilogue converts the gradient of y into the gradient of gate_up, in place, and
// recomputes y.
LinearGemm gradient_through_swiglu(Net n, const Linear& down, Tensor y, const GemmOperand& dy) {
  LinearGemm p = input_gradient_gemm(n, down, y, dy);
  p.op.epilogue = Epilogue::swiglu_gradient;
  return p;
}
// True if the backend can fuse this epilogue into the GEMM.
bool fuses_gradient(Net n, const Linear& down, const Tensor& y) {
  if (in_low_precision(n, down) || is_frozen(n, down)) return false;
  Buffer dy;
  dy.t = {.data = nullptr, .dtype = y.dtype, .shape = {y.rows(), outputs_of(n, down)}};
  return n.c.ops.fuses(gradient_through_swiglu(n, down, y, {.data = dy, .scales = {}}).op);
}

}  // namespace

// y = silu(gate) up with [gate | up] = x W^T, out = y W_down^T + residual. Backward keeps x and [gate | up], and also
// y, unless y is recomputed or the GEMM of y's gradient recomputes it anyway.
Var swiglu_mlp(Net n, Var x, const Linear& gate_up, const Linear& down, Var residual) {
  Ctx& c = n.c;
  Gated g{.reader = down};
  const Var gated = run_gated(n, std::move(x), gate_up, g);
  if (!residual || !fuses_gradient(n, down, g.y.t))
    return linear(n, swiglu(n, gated, std::move(g)), down, std::move(residual));
  Buffer out = c.alloc("mlp.out", residual.t().shape);
  const Shape half = g.y.t.shape;
  run_with_residual(n, down, out.t, {.data = std::move(g.y), .scales = {}}, residual.t());
  Var result = c.var(std::move(out));
  c.record("swiglu_mlp", [&params = n.params, down, half, kept = gated.keep(), sg = gated.slot(), sr = residual.slot(),
                          s = result.slot()](Ctx& cc) mutable {
    const Net net{cc, params};
    Buffer d = cc.take(s);
    RowsOfAll rows = gradient_rows(net, down, d);
    const Buffer all_d = rows.take();
    Buffer y = cc.alloc("swiglu.y again", half);
    LinearGemm p = gradient_through_swiglu(net, down, y.t, {.data = all_d, .scales = {}, .coming = &rows});
    p.op.aux = kept.t;  // overwritten, since nothing reads it later
    run(cc, p);
    (void)run_weight_gradient(net, down, all_d, {.data = std::move(y), .scales = {}});
    cc.put(sg, std::move(kept));
    cc.put(sr, std::move(d));  // d(residual) = d(out)
  });
  return result;
}

Var mlp(Net n, Var x, const Mlp& layer, Var residual) {
  if (layer.gated && layer.f == Activation::silu)
    return swiglu_mlp(n, std::move(x), layer.up, layer.down, std::move(residual));
  if (!layer.gated && layer.f == Activation::gelu)
    return gelu_mlp(n, std::move(x), layer.up, layer.down, std::move(residual));
  return linear(n, activation(n, linear(n, std::move(x), layer.up), layer), layer.down, std::move(residual));
}

}  // namespace athanor
