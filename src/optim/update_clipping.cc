// Update clipping [Shazeer & Stern 2018, "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost", sec. 6].
// Sums of squares are all-reduced over the ranks that shard the tensor, in the order of logical shards if results must
// not depend on the number of ranks.
#include <span>

#include "ops/adafactor.h"
#include "optim/rule.h"

namespace athanor {
namespace {

// Clips the tensors of one unit. Each tensor has one factor, but sums of squares are computed per row, so that many
// thread blocks take part.
void clip_unit(Ctx& c, const ParamStore& params, std::span<const UpdateRange> tensors, double limit) {
  const ParamStore::Unit& unit = *params.units()[tensors.front().unit];
  const auto pieces = params.pieces();
  const auto rows_of = [&](const UpdateRange& t) {
    const Shape shape = pieces[t.piece].slice->as_matrix();
    return shape.rank == 1 ? 1 : shape[0];
  };
  const int64_t leaves = params.leaves();
  int64_t all_rows = 0;
  for (const UpdateRange& t : tensors) all_rows += rows_of(t);
  const Buffer sums = c.alloc("squares of updates", DType::f64, {leaves * all_rows});
  const Buffer factors = c.alloc("factors of rows", DType::f32, {all_rows});
  OutputSquares squares{.parts = {}};
  ScaleOutputs scale{.parts = {}};
  ClipFactors clip{.parts = {}, .limit = limit};
  int64_t row = 0;
  for (const UpdateRange& t : tensors) {
    const ParamStore::Piece& piece = pieces[t.piece];
    const int64_t rows = rows_of(t), count = piece.slice->shape.numel(), columns = count / rows;
    const Tensor own_factors = factors.t.slice(row, row + rows);
    const ParamStore::Range whole{piece.offset, piece.offset + count};
    for_owned_leaves(params, unit, whole, [&](int64_t leaf, const ParamStore::Range& range) {
      const Tensor grad = unit.part(unit.grad, range);
      const OutputRange of{range.begin - piece.offset, columns, false};
      const int64_t first = leaves * row + leaf * rows;
      squares.parts.push_back({.sums = sums.t.slice(first, first + rows), .x = grad, .range = of});
      scale.parts.push_back({.x = grad, .factors = own_factors, .range = of});
    });
    clip.parts.push_back(
        {.factors = own_factors, .sums = {sums.t.at(leaves * row), DType::f64, {leaves, rows}}, .columns = columns});
    row += rows;
  }
  c.run(Fill{.x = sums.t});
  c.run(Fill{.x = factors.t, .value = 1});
  if (!squares.parts.empty()) c.run(squares);
  reduce_over_ranks(c, params, unit.name, sums.t);
  c.run(clip);
  if (!scale.parts.empty()) c.run(scale);
}

}  // namespace

void clip_updates(Ctx& c, const ParamStore& params, const Placed& placed, double limit) {
  for (size_t begin = 0, end = 0; begin < placed.ranges.size(); begin = end) {
    while (end < placed.ranges.size() && placed.ranges[end].unit == placed.ranges[begin].unit) ++end;
    clip_unit(c, params, std::span(placed.ranges).subspan(begin, end - begin), limit);
  }
}

}  // namespace athanor
