// GEMM operands of a linear layer: the matrices themselves, or in low-precision layers their quantized values.
#include <type_traits>

#include "nn/layer_quantization.h"
#include "nn/linear_gemms.h"

namespace athanor {

bool is_frozen(Net n, const Linear& layer) { return n.params.spec(layer.w).frozen; }
bool reads_input(Net n, const Linear& layer) { return !is_frozen(n, layer) || n.params.adapters(layer.w); }
bool in_low_precision(Net n, const Linear& layer) { return n.params.spec(layer.w).low_precision; }

Tensor wanted_amax(Net n, const Linear& layer, Matrix matrix) { return LayerQuantization(n, layer).amax(n.c, matrix); }

GemmOperand weight_operand(Net n, const Linear& layer, Operand operand) {
  if (const QuantizedTensor kept = kept_quantized(n, layer, operand); kept.data) {
    GemmOperand f{.blocks = kept.blocks, .transposed = kept.transposed};
    f.data.t = kept.data, f.scales.t = kept.scales, f.global.t = kept.global;
    return f;
  }
  if (const auto w = n.params.int8_weight(layer.w)) {
    GemmOperand f{.transposed = !out_in(layer), .outlier = w->outlier};
    f.data.t = w->quantized, f.scales.t = w->scales;
    return f;
  }
  return operand_of(n, layer, operand, n.params.gemm_value(n.c, layer.w));
}

GemmOperand transpose_of(const GemmOperand& f) {
  if (!f.transposed_copy.t) return f;
  return {.data = f.transposed_copy,
          .scales = f.transposed_scales.t ? f.transposed_scales : f.scales,
          .blocks = f.blocks,
          .transposed = true};
}

GemmOperand operand_of(Net n, const Linear& layer, Operand operand, const Buffer& matrix, bool both) {
  const LayerQuantization made(n, layer);
  if (!made.any(operand)) return {.data = matrix, .scales = {}};
  const QuantizedTensor like = made.like(operand, matrix.t.shape, both && made.both(matrix_of(operand)));
  const auto alloc = [&](const char* name, const Tensor& t) { return n.c.alloc(name, t.dtype, t.shape); };
  const auto optional = [&](const char* name, const Tensor& t) { return t.shape.rank ? alloc(name, t) : Buffer{}; };
  GemmOperand f{.data = alloc("quantized", like.data),
                .scales = alloc("scales", like.scales),
                .global = like.data.dtype == DType::f4_e2m1 ? alloc("scale", like.global) : Buffer{},
                .blocks = like.blocks,
                .transposed = like.transposed,
                .transposed_copy = optional("quantized, transposed", like.transposed_copy),
                .transposed_scales = optional("scales, transposed", like.transposed_scales)};
  made.make(n.c, operand, matrix.t,
            {f.data.t, f.scales.t, f.global.t, f.blocks, f.transposed, f.transposed_copy.t, f.transposed_scales.t},
            matrix.amax);
  return f;
}

GemmOperand input_operand(Net n, const Linear& layer, const Var& x, const Buffer& all) {
  return operand_of(n, layer, Operand::forward_x, all, SavedInput::keeps_quantized(n, layer, x));
}

GemmOperand operand_of_weight_gradient(Net n, const Linear& layer, const Buffer& x, const GemmOperand& forward) {
  const bool same = LayerQuantization(n, layer).same(Operand::forward_x, Operand::weight_x);
  return same || forward.transposed_copy.t ? transpose_of(forward) : operand_of(n, layer, Operand::weight_x, x);
}

// Forward quantizes x for backward, so that x need not be kept, except if backward has x anyway, or if this rank has
// only some rows of x, which backward gathers once more; then backward quantizes x.
bool SavedInput::keeps_quantized(Net n, const Linear& layer, const Var& x) {
  const bool whole = shared(n, layer) != Shared::by_outputs || !shares_rows(n.c);
  return LayerQuantization(n, layer).any(Operand::weight_x) && n.c.recording() && whole && !n.c.has_in_backward(x);
}

SavedInput::SavedInput(Net n, const Linear& layer, const Var& x, const GemmOperand& forward) {
  if (!reads_input(n, layer)) return;
  if (keeps_quantized(n, layer, x))
    quantized_ = operand_of_weight_gradient(n, layer, x.keep(), forward);
  else
    matrix_ = n.c.save(x);
}

GemmOperand SavedInput::get(Net n, const Linear& layer) const {
  if (quantized_.is_quantized()) return quantized_;
  return operand_of(n, layer, Operand::weight_x, input_rows(n, layer, matrix_.get(n.c)).get(n.c));
}

namespace {

ScaledGemm of_quantized(const LinearGemm& p) {
  return {.gemm = p.op,
          .a_scales = p.a.scales.t,
          .b_scales = p.b.scales.t,
          .a_global = p.a.global.t,
          .b_global = p.b.global.t,
          .a_blocks = p.a.blocks,
          .b_blocks = p.b.blocks,
          .fast = p.fast};
}

// Runs the epilogue as a separate op.
void run_int8(Ctx& c, const LinearGemm& p) {
  in_parts(p.op, [&]<class Part>(const Part& part) {
    if constexpr (std::is_same_v<Part, Gemm>)
      c.run(Int8Gemm{.d = part.d,
                     .a = part.a,
                     .quantized = p.b.data.t,
                     .scales = p.b.scales.t,
                     .bias = part.bias,
                     .outlier = p.b.outlier});
    else
      c.run(part);
  });
}

}  // namespace

bool fuses(const Ops& ops, const LinearGemm& p) { return !p.a.is_quantized() && !p.b.is_int8() && ops.fuses(p.op); }

// If rows of operand a are still arriving, runs one GEMM for each piece as soon as its rows have arrived.
void run(Ctx& c, const LinearGemm& p) {
  if (p.b.is_int8()) return run_int8(c, p);
  if (p.a.coming && p.a.coming->coming() > 0) {
    CHECK(!p.op.ta, "a sum over rows that have not come");
    for (const int pieces = p.a.coming->coming(); p.a.coming->coming() > 0;) {
      const int i = p.a.coming->wait(c);
      Gemm part = p.op;
      part.d = piece_of(p.op.d, pieces, i), part.a = piece_of(p.op.a, pieces, i);
      Tensor& of_rows = p.op.positions ? part.positions : part.aux;
      if (of_rows) of_rows = piece_of(of_rows, pieces, i);
      c.run(part);
    }
  } else if (p.a.is_quantized()) {
    c.run(of_quantized(p));
  } else {
    c.run(p.op);
  }
}

}  // namespace athanor
