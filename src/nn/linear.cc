// The linear layer: forward y = x W^T + b, backward both gradients.
#include <optional>
#include <utility>

#include "nn/adapters.h"
#include "nn/dora.h"
#include "nn/layer_quantization.h"
#include "nn/linear_gemms.h"

namespace athanor {
int64_t outputs_of(Net n, const Linear& layer) {
  const Shape& w = n.params.placement(layer.w).shape;
  return w[out_in(layer) ? 0 : 1];
}

LinearGemm output_gemm(Net n, const Linear& layer, Tensor y, const GemmOperand& x) {
  const bool adds_bias = layer.b && (shared(n, layer) != Shared::by_inputs || n.c.mesh.tensor().rank() == 0);
  LinearGemm p{.op = {.d = y,
                      .a = x.data.t,
                      .b = {},
                      .bias = adds_bias ? n.params.value(layer.b) : Tensor{},
                      .tb = out_in(layer),
                      .tf32 = n.c.recipe.tf32},
               .a = x,
               .b = weight_operand(n, layer, Operand::forward_w)};
  p.op.b = p.b.data.t;
  p.op.tb = out_in(layer) != p.b.transposed;
  p.fast = LayerQuantization(n, layer).rule(Operand::forward_x).fast();
  return p;
}

LinearGemm input_gradient_gemm(Net n, const Linear& layer, Tensor dx, const GemmOperand& dy) {
  LinearGemm p{.op = {.d = dx, .a = dy.data.t, .b = {}, .tb = !out_in(layer), .tf32 = n.c.recipe.tf32},
               .a = dy,
               .b = weight_operand(n, layer, Operand::input_w)};
  p.op.b = p.b.data.t;
  p.op.tb = out_in(layer) == p.b.transposed;
  return p;
}

// The bias gradient sums dy itself, never its quantized values.
GemmOperand run_weight_gradient(Net n, const Linear& layer, const Buffer& dy, const GemmOperand& x) {
  if (is_frozen(n, layer)) return {.data = dy, .scales = {}};
  Ctx& c = n.c;
  const LayerQuantization made(n, layer);
  const bool same = made.same(Operand::weight_dy, Operand::input_dy), both = made.both(Matrix::dy);
  GemmOperand quantized = operand_of(n, layer, both && !same ? Operand::input_dy : Operand::weight_dy, dy, true);
  GemmOperand read_dy = transpose_of(quantized);
  const GemmOperand &a = out_in(layer) ? read_dy : x, &b = out_in(layer) ? x : read_dy;
  LinearGemm p{.op = {.d = n.params.grad(layer.w),
                      .a = a.data.t,
                      .b = b.data.t,
                      .ta = !a.transposed,
                      .tb = b.transposed,
                      .accumulate = true,
                      .tf32 = c.recipe.tf32},
               .a = a,
               .b = b};
  if (layer.b && !quantized.is_quantized()) {
    p.op.epilogue = out_in(layer) ? Epilogue::sum_a : Epilogue::sum_b;
    p.op.aux = n.params.grad(layer.b);
  }
  c.weight_half([p = std::move(p)](Ctx& cc) { run(cc, p); });
  if (layer.b && quantized.is_quantized()) c.run(ColumnSum{.out = n.params.grad(layer.b), .x = dy.t});
  if (same || both) {
    quantized.transposed_copy = quantized.transposed_scales = {};
    return quantized;
  }
  read_dy = {}, quantized = {};
  return operand_of(n, layer, Operand::input_dy, dy);
}

namespace {

// y = x W^T, and gated.y = SwiGLU(y) if the backend fuses both; otherwise the caller computes SwiGLU from y.
void run_with_swiglu(Net n, const Linear& layer, Tensor y, const GemmOperand& x, Gated& gated) {
  LinearGemm p = output_gemm(n, layer, y, x);
  p.op.epilogue = Epilogue::swiglu;
  if (!fuses(n.c.ops, p)) {
    p.op.epilogue = Epilogue::none;
    return run(n.c, p);
  }
  gated.y = n.c.alloc("swiglu.y", {y.rows(), y.cols() / 2});
  p.op.aux = gated.y.t;
  run(n.c, p);
}

struct Rotation {
  const Batch& batch;
  Tensor cos_sin;
  AttentionShape shape;
};

// y = x W^T + b, then RoPE on q and k; one launch if the backend fuses both.
void run_with_rope(Net n, const Linear& layer, Tensor y, const GemmOperand& x, const Rotation& by) {
  const Rope rope = rotation(y, by.batch, by.cos_sin, by.shape, false);
  const LinearGemm apart = output_gemm(n, layer, y, x);
  LinearGemm p = apart;
  p.op.epilogue = Epilogue::rope;
  p.op.aux = rope.cos_sin, p.op.positions = rope.positions;
  p.op.rotated = rope.x.cols();
  if (fuses(n.c.ops, p)) return run(n.c, p);
  run(n.c, apart);
  n.c.run(rope);
}

Var linear(Net n, Var x, const Linear& layer, Var residual, Gated* gated, std::optional<Rotation> rotation = {}) {
  Ctx& c = n.c;
  const Shape in = x.t().shape;
  RowsOfAll coming = input_rows(n, layer, x.keep());
  Buffer all = coming.take();
  Buffer y = c.alloc(
      "linear.y",
      {shared(n, layer) == Shared::by_inputs ? rows_of_stream(c, all.t.rows()) : all.t.rows(), outputs_of(n, layer)});
  GemmOperand read = input_operand(n, layer, x, all);
  if (coming.coming() > 0) read.coming = &coming;  // quantized operands do not wait for rows
  all = {};
  const bool adapted = n.params.adapters(layer.w);
  Buffer h;       // h of run_adapters(), which adds to y before RoPE or SwiGLU is applied
  DoraKept dora;  // outputs that backward of DoRA needs
  if (has_magnitudes(n, layer)) {
    while (coming.coming() > 0) coming.wait(c);
    dora = run_dora(n, layer, y.t, read.data, residual ? residual.t() : Tensor{});
  } else if (gated && !adapted) {
    run_with_swiglu(n, layer, y.t, read, *gated);
  } else if (rotation && !adapted) {
    run_with_rope(n, layer, y.t, read, *rotation);
  } else {
    run_with_residual(n, layer, y.t, read, residual ? residual.t() : Tensor{}, adapted ? &h : nullptr);
  }
  if (adapted && rotation) c.run(athanor::rotation(y.t, rotation->batch, rotation->cos_sin, rotation->shape, false));
  SavedInput saved(n, layer, x, read);
  read = {};
  Var out = c.var(std::move(y));
  out.asks_amax(wanted_amax(n, layer, Matrix::dy));
  Buffer gate_up = gated ? out.keep() : Buffer{};
  c.record("linear", [&params = n.params, layer, in, saved = std::move(saved), gate_up = std::move(gate_up), h, dora,
                      asked = out.asked_amax(), sx = x.slot(), sr = residual ? residual.slot() : -1,
                      s = out.slot()](Ctx& cc) mutable {
    const Net net{cc, params};
    Buffer dy = cc.take(s);
    if (gate_up && dy.t.shape != gate_up.t.shape) {  // dy is the gradient of SwiGLU's output
      const Buffer of_gated = std::exchange(dy, std::move(gate_up));
      dy.amax = asked;
      cc.run(SwigluBwd{.dgu = dy.t, .dy = of_gated.t, .gu = dy.t, .amax = asked});  // in place: no later reader
    }
    if (dora.u) {
      const Buffer all_dy = gradient_rows(net, layer, dy).get(cc), all_x = saved.get(net, layer).data;
      cc.put(sx, run_dora_gradients(net, layer, in, all_dy, all_x.t, dora));
      if (sr >= 0) cc.put(sr, std::move(dy));
      return;
    }
    std::optional<RowsOfAll> later;
    if (overlaps_sums(net, layer)) later = overlapped_input_rows(net, layer, saved.own_rows(cc));
    RowsOfAll rows = gradient_rows(net, layer, dy);
    GemmOperand xf = later || !reads_input(net, layer) ? GemmOperand{} : saved.get(net, layer);
    Buffer dx =
        run_gradients(net, layer, "linear.dx", in, std::move(rows), std::move(xf), later ? &*later : nullptr, h.t);
    cc.put(sx, std::move(dx));
    if (sr >= 0) cc.put(sr, std::move(dy));  // d(residual) = dy
  });
  return out;
}

}  // namespace

Var linear(Net n, Var x, const Linear& layer, Var residual) {
  return linear(n, std::move(x), layer, std::move(residual), nullptr);
}
Var linear(Net n, Var x, const Linear& layer, Gated* gated) { return linear(n, std::move(x), layer, {}, gated); }
Var rotated_linear(Net n, Var x, const Linear& qkv, const Batch& batch, Tensor cos_sin, AttentionShape shape) {
  return linear(n, std::move(x), qkv, {}, nullptr, Rotation{batch, cos_sin, shape});
}

}  // namespace athanor
