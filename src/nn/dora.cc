#include "nn/dora.h"

#include <algorithm>

#include "nn/adapters.h"

namespace athanor {
namespace {

const Adapters& adapters_of(Net n, const Linear& layer) { return *n.params.adapters(layer.w); }

// Calls fn(first column, end, first output of the parts) for all columns of the output; the last argument is -1 for
// columns without adapters.
template <class Fn>
void for_all_columns(const Adapters& all, int64_t columns, Fn&& fn) {
  int64_t at = 0, output = 0;
  for (const Adapters::Part& part : all.parts) {
    if (at < part.first) fn(at, part.first, int64_t{-1});
    at = part.first + part.outputs;
    fn(part.first, at, output);
    output += part.outputs;
  }
  if (at < columns) fn(at, columns, int64_t{-1});
}

// Adds the squared norms of rows [begin, end) of one part's W + s B A to `squares`. W's rows are outputs, or inputs if
// in_out (GPT-2's order).
void add_squares(Net n, const Tensor& w, bool in_out, const Tensor& a, const Tensor& b, const Tensor& squares,
                 int64_t begin, int64_t end) {
  Ctx& c = n.c;
  const Tensor rows = w.slice(begin, end);
  const Buffer sum = c.alloc("dora.rows", DType::f32, rows.shape);
  const Tensor flat = sum.t.view({sum.t.numel()});
  c.run(Cast{.y = flat, .x = rows.view({rows.numel()})});
  const bool tf32 = c.recipe.tf32;
  if (in_out)
    c.run(
        Gemm{.d = sum.t, .a = a.columns(begin, end), .b = b, .ta = true, .tb = true, .accumulate = true, .tf32 = tf32});
  else
    c.run(Gemm{.d = sum.t, .a = b.slice(begin, end), .b = a, .accumulate = true, .tf32 = tf32});
  OutputSquares op;
  op.parts[0] = {.sums = in_out ? squares : squares.slice(begin, end),
                 .x = flat,
                 .range = {.first = 0, .cols = rows.cols(), .columns = in_out}};
  c.run(op);
}

Buffer squared_norms(Net n, const Linear& layer) {
  constexpr int64_t kTogether = 1 << 22;  // max elements that are converted to f32 at a time
  Ctx& c = n.c;
  const Adapters& all = adapters_of(n, layer);
  const bool in_out = layer.order == WeightOrder::in_out;
  const Buffer weight = n.params.gemm_value(c, layer.w);
  const Tensor b = n.params.value(all.b);
  Buffer a = c.alloc("dora.a", n.params.value(all.a).shape);  // s A
  c.run(Combine{.y = a.t, .a = n.params.value(all.a), .alpha = all.scale});
  Buffer squares = c.alloc("dora.squares", DType::f64, {b.rows()});
  c.run(Fill{.x = squares.t});
  int64_t output = 0;
  for (size_t i = 0; i < all.parts.size(); ++i) {
    const Adapters::Part& part = all.parts[i];
    const int64_t last = output + part.outputs, rank = all.rank, row = int64_t(i) * rank;
    const Tensor w = in_out ? weight.t : weight.t.slice(part.first, part.first + part.outputs);
    const int64_t step = std::max<int64_t>(1, kTogether / w.cols());
    for (int64_t begin = 0; begin < w.rows(); begin += step)
      add_squares(n, w, in_out, a.t.slice(row, row + rank), b.slice(output, last), squares.t.slice(output, last), begin,
                  std::min(begin + step, w.rows()));
    output = last;
  }
  if (shared(n, layer) == Shared::by_inputs) c.tensor_sum(squares.t);
  return squares;
}

// y [+]= u m / norm [+ b] in columns with adapters; y [+]= u [+ b] in other columns.
void scale_outputs(Net n, const Linear& layer, const Tensor& y, const DoraKept& kept, const Tensor& bias,
                   bool accumulate) {
  const Adapters& all = adapters_of(n, layer);
  const Tensor m = n.params.value(all.magnitude);
  for_all_columns(all, y.cols(), [&](int64_t begin, int64_t end, int64_t output) {
    ScaleByMagnitude op{.y = y.columns(begin, end), .x = kept.u.t.columns(begin, end), .accumulate = accumulate};
    if (bias) op.bias = bias.slice(begin, end);
    const int64_t last = output + end - begin;
    if (output >= 0) op.magnitude = m.slice(output, last), op.squares = kept.squares.t.slice(output, last);
    n.c.run(op);
  });
}

}  // namespace

bool has_magnitudes(Net n, const Linear& layer) {
  const Adapters* adapters = n.params.adapters(layer.w);
  return adapters && adapters->magnitude;
}

// In a row-parallel layer all terms are this rank's partial sums; the factor m / norm is that of the whole weight.
DoraKept run_dora(Net n, const Linear& layer, const Tensor& y, const Buffer& x, const Tensor& residual) {
  Ctx& c = n.c;
  DoraKept kept;
  const bool sums = shared(n, layer) == Shared::by_inputs, drops = drops_inputs(n, layer);
  PartsOfRows parts = PartsOfRows::if_partial(c, y, sums);
  const Tensor& part = parts.t();
  const Buffer read = dropped_input(n, layer, x.t);
  const bool residual_first = residual && !sums;
  if (drops) {
    const Buffer rest = c.alloc("dora.rest", x.t.shape);
    c.run(Combine{.y = rest.t, .a = x.t, .b = read.t, .alpha = 1, .beta = -1});
    LinearGemm gemm = output_gemm(n, layer, part, {.data = rest, .scales = {}});
    if (residual_first) gemm.op.epilogue = Epilogue::add, gemm.op.aux = residual;
    run(c, gemm);
  } else if (residual_first) {
    c.run(Combine{.y = part, .a = residual});
  }
  kept.u = c.alloc("dora.u", part.shape);
  LinearGemm gemm = output_gemm(n, layer, kept.u.t, {.data = read, .scales = {}});
  const Tensor bias = drops ? Tensor{} : gemm.op.bias;
  gemm.op.bias = {};
  run(c, gemm);
  gemm = {};
  kept.h = run_adapters(n, layer, kept.u.t, x.t);
  kept.squares = squared_norms(n, layer);
  scale_outputs(n, layer, part, kept, bias, drops || residual_first);
  if (!sums) return kept;
  const CollectiveSubject subject(n.params.spec(layer.w).name);
  parts.add_up(c);
  if (residual) c.run(Add{.y = y, .a = y, .b = residual});
  return kept;
}

Buffer run_dora_gradients(Net n, const Linear& layer, const Shape& in, const Buffer& dy, const Tensor& x,
                          const DoraKept& kept) {
  Ctx& c = n.c;
  const Adapters& all = adapters_of(n, layer);
  const Tensor m = n.params.value(all.magnitude), dm = n.params.grad(all.magnitude);
  Buffer du = c.alloc("dora.du", dy.t.shape);
  for_all_columns(all, dy.t.cols(), [&](int64_t begin, int64_t end, int64_t output) {
    const Tensor to = du.t.columns(begin, end), from = dy.t.columns(begin, end);
    if (output < 0) return c.run(Combine{.y = to, .a = from});
    const int64_t last = output + end - begin;
    c.run(ScaleByMagnitudeBwd{.dx = to,
                              .dm = dm.slice(output, last),
                              .dy = from,
                              .x = kept.u.t.columns(begin, end),
                              .magnitude = m.slice(output, last),
                              .squares = kept.squares.t.slice(output, last)});
  });
  Buffer dx = c.alloc("linear.dx", in);
  const bool drops = drops_inputs(n, layer);
  PartsOfRows parts = PartsOfRows::if_partial(c, dx.t, shared(n, layer) == Shared::by_outputs);
  const Tensor& sum = parts.t();
  run(c, input_gradient_gemm(n, layer, sum, {.data = drops ? dy : du, .scales = {}}));
  if (drops) {
    const Buffer more = c.alloc("dora.more", du.t.shape), part = c.alloc("dora.dx", x.shape);
    c.run(Combine{.y = more.t, .a = du.t, .b = dy.t, .alpha = 1, .beta = -1});
    run(c, input_gradient_gemm(n, layer, part.t, {.data = more, .scales = {}}));
    drop_gradient(n, layer, part.t);
    c.run(Add{.y = sum, .a = sum, .b = part.t});
  }
  run_adapter_gradients(n, layer, sum, du.t, x, kept.h.t);
  const CollectiveSubject subject(n.params.spec(layer.w).name);
  parts.add_up(c);
  return dx;
}

}  // namespace athanor
