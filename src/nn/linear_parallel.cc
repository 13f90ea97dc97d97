// Linear layers under tensor parallelism: which rows of the residual stream a rank's GEMMs read, and where collectives
// overlap GEMMs.
#include <array>

#include "nn/adapters.h"
#include "nn/linear_gemms.h"

namespace athanor {

Shared shared(const ParamStore& params, const Linear& layer) {
  if (!params.placement(layer.w).is_cut()) return Shared::no;
  return (params.spec(layer.w).cut.axis == 0) == out_in(layer) ? Shared::by_outputs : Shared::by_inputs;
}
Shared shared(Net n, const Linear& layer) { return shared(n.params, layer); }

namespace {

// True if a piece of an output [all rows, columns] is large enough for a separate GEMM.
bool computes_by_pieces(Net n, const Linear& layer, const Buffer& own, int64_t columns) {
  const int64_t piece = own.t.rows() * n.c.mesh.tensor().size() / n.c.row_pieces * columns;
  return n.c.overlaps_sums && n.c.row_pieces > 1 && piece >= n.c.least_piece && !in_low_precision(n, layer);
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

namespace {

// Number of row pieces in which an output that is summed over ranks is computed.
int summed_pieces(const Ctx& c, const Tensor& y, const GemmOperand& x) {
  if (!c.overlaps_sums || x.is_quantized()) return 1;
  if (shares_rows(c)) return c.row_pieces;
  return y.numel() / 2 >= c.least_piece && y.rows() > 1 ? 2 : 1;
}

// The sum over ranks of one piece of rows overlaps the GEMM of the next piece, and the last such sum overlaps residual
// additions [Wang et al. 2024, "Domino: Eliminating Communication in LLM Training via Generic Tensor Slicing and
// Overlapping"].
void run_in_pieces(Net n, const Linear& layer, Tensor y, const GemmOperand& x, Tensor residual, int pieces) {
  const CollectiveSubject subject(n.params.spec(layer.w).name);
  const LinearGemm whole = output_gemm(n, layer, y, x);
  std::array<PartsOfRows, kMostRowPieces> parts;
  for (int i = 0; i < pieces; ++i) {
    PartsOfRows& mine = parts[size_t(i)] = PartsOfRows(n.c, piece_of(y, pieces, i), 1);
    LinearGemm part = whole;
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

// In a row-parallel layer the sum is rounded before the residual is added: a residual in each rank's partial sum would
// count once per rank. Adapters add to the partial sum.
void run_with_residual(Net n, const Linear& layer, Tensor y, const GemmOperand& x, Tensor residual, Buffer* h) {
  if (shared(n, layer) != Shared::by_inputs) {
    LinearGemm gemm = output_gemm(n, layer, y, x);
    if (residual) {
      gemm.op.epilogue = Epilogue::add;
      gemm.op.aux = residual;
    }
    run(n.c, gemm);
    if (h) *h = run_adapters(n, layer, y, x.data.t);
    return;
  }
  if (const int pieces = summed_pieces(n.c, y, x); pieces > 1 && !h)
    return run_in_pieces(n, layer, y, x, residual, pieces);
  PartsOfRows parts(n.c, y);
  run(n.c, output_gemm(n, layer, parts.t(), x));
  if (h) *h = run_adapters(n, layer, parts.t(), x.data.t);
  const CollectiveSubject subject(n.params.spec(layer.w).name);
  parts.add_up(n.c);
  if (residual) n.c.run(Add{.y = y, .a = y, .b = residual});
}

// A frozen layer has no weight gradient that could overlap.
bool overlaps_sums(Net n, const Linear& layer) {
  return n.c.overlaps_sums && shared(n, layer) == Shared::by_outputs && !in_low_precision(n, layer) &&
         !is_frozen(n, layer);
}

RowsOfAll overlapped_input_rows(Net n, const Linear& layer, const Buffer& own) {
  const CollectiveSubject subject(n.params.spec(layer.w).name);
  return RowsOfAll(n.c, own, true);
}

Buffer run_gradients(Net n, const Linear& layer, std::string_view name, const Shape& in, RowsOfAll rows, GemmOperand x,
                     RowsOfAll* later, const Tensor& h) {
  Ctx& c = n.c;
  const Buffer dy = rows.take();
  if (rows.coming() > 0) {
    Buffer dx = c.alloc(name, in);
    run(c, input_gradient_gemm(n, layer, dx.t, {.data = dy, .scales = {}, .coming = &rows}));
    (void)run_weight_gradient(n, layer, dy, x);
    if (h) run_adapter_gradients(n, layer, dx.t, dy.t, x.data.t, h);
    return dx;
  }
  const CollectiveSubject subject(n.params.spec(layer.w).name);
  if (!overlaps_sums(n, layer)) {
    const GemmOperand read_dy = run_weight_gradient(n, layer, dy, x);
    Buffer dx = c.alloc(name, in);
    if (!h) x = {};
    PartsOfRows parts = PartsOfRows::if_partial(c, dx.t, shared(n, layer) == Shared::by_outputs);
    run(c, input_gradient_gemm(n, layer, parts.t(), read_dy));
    if (h) run_adapter_gradients(n, layer, parts.t(), dy.t, x.data.t, h);
    parts.add_up(c);
    return dx;
  }
  Buffer dx = c.alloc(name, in);
  PartsOfRows parts(c, dx.t);
  run(c, input_gradient_gemm(n, layer, parts.t(), {.data = dy, .scales = {}}));
  if (later) x = {.data = later->get(c), .scales = {}};
  parts.begin(c);
  (void)run_weight_gradient(n, layer, dy, x);
  parts.end(c);
  return dx;
}

}  // namespace athanor
