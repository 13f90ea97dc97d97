#include <optional>
#include <utility>

#include "nn/products.h"

#include "nn/adapters.h"
#include "nn/codes.h"
#include "nn/dora.h"

namespace athanor {
namespace {

bool out_in(const Linear& layer) { return layer.order == WeightOrder::out_in; }

Factor weight(Net n, const Linear& layer, Operand operand) {
  if (const Codes kept = kept_codes(n, layer, operand); kept.data) {
    Factor f{.blocks = kept.blocks, .turned = kept.turned};
    f.data.t = kept.data, f.scales.t = kept.scales, f.global.t = kept.global;
    return f;
  }
  return factor(n, layer, operand, n.params.gemm_value(n.c, layer.w));
}

// What a product that sums over the rows reads.
Factor transpose_of(const Factor& f) {
  if (!f.beside.t) return f;
  return {
      .data = f.beside, .scales = f.beside_scales.t ? f.beside_scales : f.scales, .blocks = f.blocks, .turned = true};
}

}  // namespace

int64_t outputs_of(Net n, const Linear& layer) {
  const Shape& w = n.params.placement(layer.w).shape;
  return w[out_in(layer) ? 0 : 1];
}

Shared shared(const ParamStore& params, const Linear& layer) {
  if (!params.placement(layer.w).is_cut()) return Shared::no;
  return (params.spec(layer.w).cut.axis == 0) == out_in(layer) ? Shared::by_outputs : Shared::by_inputs;
}
Shared shared(Net n, const Linear& layer) { return shared(n.params, layer); }

namespace {

// Whether a piece of an output [all rows, columns] is worth a product of its own.
bool computes_by_pieces(Net n, const Linear& layer, const Buffer& own, int64_t columns) {
  const int64_t piece = own.t.rows() * n.c.mesh.tensor().size() / n.c.row_pieces * columns;
  return n.c.sums_beside && n.c.row_pieces > 1 && piece >= n.c.least_piece && !in_low_precision(n, layer);
}

}  // namespace

RowsOfAll input_rows(Net n, const Linear& layer, const Buffer& x) {
  if (shared(n, layer) != Shared::by_outputs) return RowsOfAll(x);
  const CollectiveSubject subject(n.params.spec(layer.w).name);
  return RowsOfAll(n.c, x, computes_by_pieces(n, layer, x, outputs_of(n, layer)));
}

RowsOfAll gradient_rows(Net n, const Linear& layer, const Buffer& dy) {
  if (shared(n, layer) != Shared::by_inputs) return RowsOfAll(dy);
  const CollectiveSubject subject(n.params.spec(layer.w).name);
  const Shape& w = n.params.placement(layer.w).shape;
  return RowsOfAll(n.c, dy, computes_by_pieces(n, layer, dy, w[out_in(layer) ? 1 : 0]));
}

bool is_frozen(Net n, const Linear& layer) { return n.params.spec(layer.w).frozen; }
bool in_low_precision(Net n, const Linear& layer) { return n.params.spec(layer.w).low_precision; }

Tensor wanted_largest(Net n, const Linear& layer, Matrix matrix) { return LayerCodes(n, layer).largest(n.c, matrix); }

Factor factor(Net n, const Linear& layer, Operand operand, const Buffer& matrix, bool both) {
  const LayerCodes made(n, layer);
  if (!made.any(operand)) return {.data = matrix, .scales = {}};
  const Codes like = made.like(operand, matrix.t.shape, both && made.both(matrix_of(operand)));
  const auto alloc = [&](const char* name, const Tensor& t) { return n.c.alloc(name, t.dtype, t.shape); };
  const auto optional = [&](const char* name, const Tensor& t) { return t.shape.rank ? alloc(name, t) : Buffer{}; };
  Factor f{.data = alloc("codes", like.data),
           .scales = alloc("scales", like.scales),
           .global = like.data.dtype == DType::f4_e2m1 ? alloc("scale", like.global) : Buffer{},
           .blocks = like.blocks,
           .turned = like.turned,
           .beside = optional("codes, transposed", like.beside),
           .beside_scales = optional("scales, transposed", like.beside_scales)};
  made.make(n.c, operand, matrix.t,
            {f.data.t, f.scales.t, f.global.t, f.blocks, f.turned, f.beside.t, f.beside_scales.t}, matrix.amax);
  return f;
}

Factor input_factor(Net n, const Linear& layer, const Var& x, const Buffer& all) {
  return factor(n, layer, Operand::forward_x, all, SavedInput::keeps_codes(n, layer, x));
}

namespace {

ScaledGemm of_codes(const Product& p) {
  return {.product = p.op,
          .a_scales = p.a.scales.t,
          .b_scales = p.b.scales.t,
          .a_global = p.a.global.t,
          .b_global = p.b.global.t,
          .a_blocks = p.a.blocks,
          .b_blocks = p.b.blocks,
          .fast = p.fast};
}

bool fuses(const Ops& ops, const Product& p) { return !p.a.is_codes() && ops.fuses(p.op); }

}  // namespace

// A product with rows that are still on their way is one for each piece of them, as soon as it is there.
void run(Ctx& c, const Product& p) {
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
  } else if (p.a.is_codes()) {
    c.run(of_codes(p));
  } else {
    c.run(p.op);
  }
}

Product linear_product(Net n, const Linear& layer, Tensor y, const Factor& x) {
  const bool adds_bias = layer.b && (shared(n, layer) != Shared::by_inputs || n.c.mesh.tensor().rank() == 0);
  Product p{.op = {.d = y,
                   .a = x.data.t,
                   .b = {},
                   .bias = adds_bias ? n.params.value(layer.b) : Tensor{},
                   .tb = out_in(layer),
                   .tf32 = n.c.recipe.tf32},
            .a = x,
            .b = weight(n, layer, Operand::forward_w)};
  p.op.b = p.b.data.t;
  p.op.tb = out_in(layer) != p.b.turned;
  p.fast = LayerCodes(n, layer).rule(Operand::forward_x).fast();
  return p;
}

Product input_gradient(Net n, const Linear& layer, Tensor dx, const Factor& dy) {
  Product p{.op = {.d = dx, .a = dy.data.t, .b = {}, .tb = !out_in(layer), .tf32 = n.c.recipe.tf32},
            .a = dy,
            .b = weight(n, layer, Operand::input_w)};
  p.op.b = p.b.data.t;
  p.op.tb = out_in(layer) == p.b.turned;
  return p;
}

namespace {

// Pieces of rows in which an output that ranks add up is computed.
int summed_pieces(const Ctx& c, const Tensor& y, const Factor& x) {
  if (!c.sums_beside || x.is_codes()) return 1;
  if (shares_rows(c)) return c.row_pieces;
  return y.numel() / 2 >= c.least_piece && y.rows() > 1 ? 2 : 1;
}

// The sum of one piece of the rows beside the product of the next, and the last one beside residuals [Wang et al. 2024,
// "Domino: Eliminating Communication in LLM Training via Generic Tensor Slicing and Overlapping"].
void run_in_pieces(Net n, const Linear& layer, Tensor y, const Factor& x, Tensor residual, int pieces) {
  const CollectiveSubject subject(n.params.spec(layer.w).name);
  const Product whole = linear_product(n, layer, y, x);
  std::array<PartsOfRows, kMostRowPieces> parts;
  for (int i = 0; i < pieces; ++i) {
    PartsOfRows& mine = parts[size_t(i)] = PartsOfRows(n.c, piece_of(y, pieces, i), 1);
    Product part = whole;
    part.op.d = mine.t(), part.op.a = piece_of(whole.op.a, pieces, i);
    run(n.c, part);
    mine.begin(n.c);
  }
  for (int i = 0; i < pieces; ++i) {
    parts[size_t(i)].end(n.c);
    const Tensor sum = piece_of(y, pieces, i);
    if (residual) n.c.run(Add{.y = sum, .a = sum, .b = piece_of(residual, pieces, i)});
  }
}

}  // namespace

// Rounded before it is added where ranks share the sum: a residual in each part would count once per rank.
void run_with_residual(Net n, const Linear& layer, Tensor y, const Factor& x, Tensor residual) {
  if (shared(n, layer) != Shared::by_inputs) {
    Product product = linear_product(n, layer, y, x);
    if (residual) {
      product.op.epilogue = Epilogue::add;
      product.op.aux = residual;
    }
    return run(n.c, product);
  }
  if (const int pieces = summed_pieces(n.c, y, x); pieces > 1) return run_in_pieces(n, layer, y, x, residual, pieces);
  PartsOfRows parts(n.c, y);
  run(n.c, linear_product(n, layer, parts.t(), x));
  const CollectiveSubject subject(n.params.spec(layer.w).name);
  parts.add_up(n.c);
  if (residual) n.c.run(Add{.y = y, .a = y, .b = residual});
}

void run_input_gradient(Net n, const Linear& layer, Tensor dx, const Factor& dy) {
  if (shared(n, layer) != Shared::by_outputs) return run(n.c, input_gradient(n, layer, dx, dy));
  PartsOfRows parts(n.c, dx);
  run(n.c, input_gradient(n, layer, parts.t(), dy));
  const CollectiveSubject subject(n.params.spec(layer.w).name);
  parts.add_up(n.c);
}

bool sums_beside(Net n, const Linear& layer) {
  return n.c.sums_beside && shared(n, layer) == Shared::by_outputs && !in_low_precision(n, layer);
}

RowsOfAll input_rows_beside(Net n, const Linear& layer, const Buffer& own) {
  const CollectiveSubject subject(n.params.spec(layer.w).name);
  return RowsOfAll(n.c, own, true);
}

Buffer run_gradients(Net n, const Linear& layer, std::string_view name, const Shape& in, RowsOfAll rows, Factor x,
                     RowsOfAll* later) {
  Ctx& c = n.c;
  const Buffer dy = rows.take();
  if (rows.coming() > 0) {
    Buffer dx = c.alloc(name, in);
    run(c, input_gradient(n, layer, dx.t, {.data = dy, .scales = {}, .coming = &rows}));
    (void)run_weight_gradient(n, layer, dy, x);
    return dx;
  }
  if (!sums_beside(n, layer)) {
    const Factor read_dy = run_weight_gradient(n, layer, dy, x);
    Buffer dx = c.alloc(name, in);
    x = {};
    run_input_gradient(n, layer, dx.t, read_dy);
    return dx;
  }
  const CollectiveSubject subject(n.params.spec(layer.w).name);
  Buffer dx = c.alloc(name, in);
  PartsOfRows parts(c, dx.t);
  run(c, input_gradient(n, layer, parts.t(), {.data = dy, .scales = {}}));
  if (later) x = {.data = later->get(c), .scales = {}};
  parts.begin(c);
  (void)run_weight_gradient(n, layer, dy, x);
  parts.end(c);
  return dx;
}

// Sums for the bias are of dy itself, never of its codes.
Factor run_weight_gradient(Net n, const Linear& layer, const Buffer& dy, const Factor& x) {
  if (is_frozen(n, layer)) return {.data = dy, .scales = {}};
  Ctx& c = n.c;
  const LayerCodes made(n, layer);
  const bool same = made.same(Operand::weight_dy, Operand::input_dy), both = made.both(Matrix::dy);
  Factor codes = factor(n, layer, both && !same ? Operand::input_dy : Operand::weight_dy, dy, true);
  Factor read_dy = transpose_of(codes);
  const Factor &a = out_in(layer) ? read_dy : x, &b = out_in(layer) ? x : read_dy;
  Product p{.op = {.d = n.params.grad(layer.w),
                   .a = a.data.t,
                   .b = b.data.t,
                   .ta = !a.turned,
                   .tb = b.turned,
                   .accumulate = true,
                   .tf32 = c.recipe.tf32},
            .a = a,
            .b = b};
  if (layer.b && !codes.is_codes()) {
    p.op.epilogue = out_in(layer) ? Epilogue::sum_a : Epilogue::sum_b;
    p.op.aux = n.params.grad(layer.b);
  }
  c.weight_half([p = std::move(p)](Ctx& cc) { run(cc, p); });
  if (layer.b && codes.is_codes()) c.run(ColumnSum{.out = n.params.grad(layer.b), .x = dy.t});
  if (same || both) {
    codes.beside = codes.beside_scales = {};
    return codes;
  }
  read_dy = {}, codes = {};
  return factor(n, layer, Operand::input_dy, dy);
}

Factor weight_factor(Net n, const Linear& layer, const Buffer& x, const Factor& forward) {
  const bool same = LayerCodes(n, layer).same(Operand::forward_x, Operand::weight_x);
  return same || forward.beside.t ? transpose_of(forward) : factor(n, layer, Operand::weight_x, x);
}

// Codes are made now, so that the matrix need not be kept; but where backward has the matrix anyway, they are made
// there, as where a rank has but some rows of it: those are gathered again.
bool SavedInput::keeps_codes(Net n, const Linear& layer, const Var& x) {
  const bool whole = shared(n, layer) != Shared::by_outputs || !shares_rows(n.c);
  return LayerCodes(n, layer).any(Operand::weight_x) && n.c.recording() && whole && !n.c.has_in_backward(x);
}

SavedInput::SavedInput(Net n, const Linear& layer, const Var& x, const Factor& forward) {
  if (is_frozen(n, layer) && !n.params.adapters(layer.w)) return;
  if (keeps_codes(n, layer, x))
    codes_ = weight_factor(n, layer, x.keep(), forward);
  else
    matrix_ = n.c.save(x);
}

Factor SavedInput::get(Net n, const Linear& layer) const {
  if (codes_.is_codes()) return codes_;
  return factor(n, layer, Operand::weight_x, input_rows(n, layer, matrix_.get(n.c)).get(n.c));
}

namespace {

// y = x W^T, and SwiGLU of that where both are fused; else the caller makes it of y.
void run_with_swiglu(Net n, const Linear& layer, Tensor y, const Factor& x, Gated& gated) {
  Product p = linear_product(n, layer, y, x);
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

// y = x W^T + b, with queries and keys turned, in one launch where both are fused.
void run_with_rope(Net n, const Linear& layer, Tensor y, const Factor& x, const Rotation& by) {
  const Rope turn = rotation(y, by.batch, by.cos_sin, by.shape, false);
  const Product apart = linear_product(n, layer, y, x);
  Product p = apart;
  p.op.epilogue = Epilogue::rope;
  p.op.aux = turn.cos_sin, p.op.positions = turn.positions;
  p.op.rotated = turn.x.cols();
  if (fuses(n.c.ops, p)) return run(n.c, p);
  run(n.c, apart);
  n.c.run(turn);
}

Var linear(Net n, Var x, const Linear& layer, Var residual, Gated* gated, std::optional<Rotation> rotation = {}) {
  Ctx& c = n.c;
  const Shape in = x.t().shape;
  RowsOfAll coming = input_rows(n, layer, x.keep());
  Buffer all = coming.take();
  Buffer y = c.alloc(
      "linear.y",
      {shared(n, layer) == Shared::by_inputs ? rows_of_stream(c, all.t.rows()) : all.t.rows(), outputs_of(n, layer)});
  Factor read = input_factor(n, layer, x, all);
  if (coming.coming() > 0) read.coming = &coming;  // not of codes, which may be kept
  all = {};
  const bool adapted = n.params.adapters(layer.w);
  Buffer h;       // of the adapters, whose part is added before what else is made of y
  DoraKept dora;  // likewise of adapters with magnitudes
  if (has_magnitudes(n, layer))
    dora = run_dora(n, layer, y.t, read.data, residual ? residual.t() : Tensor{});
  else if (gated && !adapted)
    run_with_swiglu(n, layer, y.t, read, *gated);
  else if (rotation && !adapted)
    run_with_rope(n, layer, y.t, read, *rotation);
  else
    run_with_residual(n, layer, y.t, read, residual ? residual.t() : Tensor{});
  if (adapted && !dora.u) h = run_adapters(n, layer, y.t, read.data.t);
  if (adapted && rotation) c.run(athanor::rotation(y.t, rotation->batch, rotation->cos_sin, rotation->shape, false));
  SavedInput saved(n, layer, x, read);
  read = {};
  Var out = c.var(std::move(y));
  out.asks_largest(wanted_largest(n, layer, Matrix::dy));
  Buffer gate_up = gated ? out.keep() : Buffer{};
  c.record("linear", [&params = n.params, layer, in, saved = std::move(saved), gate_up = std::move(gate_up), h, dora,
                      asked = out.asked_largest(), sx = x.slot(), sr = residual ? residual.slot() : -1,
                      s = out.slot()](Ctx& cc) mutable {
    const Net net{cc, params};
    Buffer dy = cc.take(s);
    if (gate_up && dy.t.shape != gate_up.t.shape) {  // the gradient of y
      const Buffer of_gated = std::exchange(dy, std::move(gate_up));
      dy.amax = asked;
      cc.run(SwigluBwd{.dgu = dy.t, .dy = of_gated.t, .gu = dy.t, .amax = asked});  // in place: no later reader
    }
    if (dora.u) {
      cc.put(sx, run_dora_gradients(net, layer, dy, saved.get(net, layer).data.t, dora));
      if (sr >= 0) cc.put(sr, std::move(dy));
      return;
    }
    std::optional<RowsOfAll> later;
    if (sums_beside(net, layer)) later = input_rows_beside(net, layer, saved.own_rows(cc));
    RowsOfAll rows = gradient_rows(net, layer, dy);
    Factor xf = later ? Factor{} : saved.get(net, layer);
    const Buffer x_of_adapters = h ? xf.data : Buffer{};
    Buffer dx = run_gradients(net, layer, "linear.dx", in, std::move(rows), std::move(xf), later ? &*later : nullptr);
    if (h) run_adapter_gradients(net, layer, dx.t, dy.t, x_of_adapters.t, h.t);
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
