// Adafactor: second moments factored into rows and columns, no first moments, and updates clipped to an RMS of 1 per
// tensor. A vector is treated as a matrix of one column, whose factored moments equal its unfactored ones. The learning
// rate is the run's, as in T5's training: no relative steps and no scaling by the weights' RMS. Sums of squares are
// all-reduced over the ranks that shard the tensor, in the order of logical shards if results must not depend on the
// number of ranks. Second moments are replicated on all ranks.
#include "ops/adafactor.h"

#include <span>

#include "optim/rule.h"

namespace athanor {
namespace {

struct Sides {
  int64_t rows, columns;
};
Sides sides_of(const ParamStore::Piece& piece) {
  const Shape shape = piece.slice->as_matrix();
  return shape.rank == 1 ? Sides{shape[0], 1} : Sides{shape[0], shape[1]};
}
std::vector<int64_t> rows_of(const ParamStore& params) {
  std::vector<int64_t> sizes;
  for (const auto& piece : params.pieces()) sizes.push_back(sides_of(piece).rows);
  return sizes;
}
std::vector<int64_t> columns_of(const ParamStore& params) {
  std::vector<int64_t> sizes;
  for (const auto& piece : params.pieces()) sizes.push_back(sides_of(piece).columns);
  return sizes;
}

class AdafactorRule final : public UpdateRule {
 public:
  explicit AdafactorRule(const RuleOptions& options) : o_(options) {}
  std::vector<KeptState> states() const override {
    return {{"v_row", DType::f32, rows_of}, {"v_column", DType::f32, columns_of}};
  }
  std::vector<UpdatePass> passes() const override {
    using Use = UpdatePass::Use;
    return {{UpdatePass::Of::everything, Use::no, Use::no}, {.states = Use::no}};
  }
  void run(size_t pass, Ctx& c, ParamStore& params, const Placed& placed, Tensor step_state) override {
    if (pass == 1) return move_along(c, o_, params, placed, step_state);
    if (tensors_.empty()) find_tensors(params, placed);
    for (size_t begin = 0, end = 0; begin < tensors_.size(); begin = end) {
      while (end < tensors_.size() && tensors_[end].unit == tensors_[begin].unit) ++end;
      make_directions(c, params, placed, std::span(tensors_).subspan(begin, end - begin), step_state);
    }
  }

 private:
  struct UnitTensor {
    size_t unit;
    ParamStore::Range range;  // elements of the unit
    Sides sides;
    int64_t first_row, first_column;  // offsets of the tensor's second moments in the unit's states
  };

  // The tensors are the same in every step.
  void find_tensors(const ParamStore& params, const Placed& placed) {
    const auto pieces = params.pieces();
    for (const UpdateRange& r : placed.ranges) {
      const ParamStore::Piece& piece = pieces[r.piece];
      const auto& states = params.units()[r.unit]->states;
      tensors_.push_back({.unit = r.unit,
                          .range = {piece.offset, piece.offset + piece.slice->shape.numel()},
                          .sides = sides_of(piece),
                          .first_row = states[placed.states[0]].first_of(r.piece),
                          .first_column = states[placed.states[1]].first_of(r.piece)});
    }
  }

  // Replaces the gradients in this rank's shard of a unit by clipped update directions.
  void make_directions(Ctx& c, const ParamStore& params, const Placed& placed, std::span<const UnitTensor> tensors,
                       Tensor step_state) const {
    const ParamStore::Unit& unit = *params.units()[tensors.front().unit];
    const int64_t leaves = params.leaves();
    int64_t rows = 0, lines = 0;
    for (const UnitTensor& t : tensors) rows += t.sides.rows, lines += t.sides.rows + t.sides.columns;
    const Buffer sums = c.alloc("squares of rows and columns", DType::f64, {leaves * lines});
    const Buffer clipped_sums = c.alloc("squares of updates", DType::f64, {leaves * rows});
    const Buffer factors = c.alloc("factors of rows and columns", DType::f32, {lines});
    OutputSquares squares{.parts = {}}, of_updates{.parts = {}};
    FactoredMoments moments{.parts = {}, .state = step_state};
    ScaleOutputs scale_columns{.parts = {}}, scale_rows{.parts = {}};
    ClipFactors clip{.parts = {}};
    int64_t at = 0, row = 0;  // offsets of the tensor's lines and rows
    for (const UnitTensor& t : tensors) {
      const int64_t r = t.sides.rows, n = t.sides.columns;
      const Tensor row_factors = factors.t.slice(at, at + r), column_factors = factors.t.slice(at + r, at + r + n);
      const int64_t of_rows = leaves * at, of_columns = leaves * (at + r), of_clipped = leaves * row;
      for_owned_leaves(params, unit, t.range, [&](int64_t leaf, const ParamStore::Range& range) {
        const Tensor grad = unit.part(unit.grad, range);
        const OutputRange by_rows{range.begin - t.range.begin, n, false}, by_columns{by_rows.first, n, true};
        const auto sums_of = [leaf](const Buffer& all, int64_t first, int64_t count) {
          return all.t.slice(first + leaf * count, first + (leaf + 1) * count);
        };
        squares.parts.push_back({.sums = sums_of(sums, of_rows, r), .x = grad, .range = by_rows});
        squares.parts.push_back({.sums = sums_of(sums, of_columns, n), .x = grad, .range = by_columns});
        scale_columns.parts.push_back({.x = grad, .factors = column_factors, .range = by_columns});
        of_updates.parts.push_back({.sums = sums_of(clipped_sums, of_clipped, r), .x = grad, .range = by_rows});
        scale_rows.parts.push_back({.x = grad, .factors = row_factors, .range = by_rows});
      });
      const Tensor all_r = unit.states[placed.states[0]].t, all_c = unit.states[placed.states[1]].t;
      moments.parts.push_back({.r = all_r.slice(t.first_row, t.first_row + r),
                               .c = all_c.slice(t.first_column, t.first_column + n),
                               .row_factors = row_factors,
                               .column_factors = column_factors,
                               .row_sums = {sums.t.at(of_rows), DType::f64, {leaves, r}},
                               .column_sums = {sums.t.at(of_columns), DType::f64, {leaves, n}}});
      clip.parts.push_back(
          {.factors = row_factors, .sums = {clipped_sums.t.at(of_clipped), DType::f64, {leaves, r}}, .columns = n});
      at += r + n, row += r;
    }
    c.run(Fill{.x = sums.t});
    c.run(Fill{.x = clipped_sums.t});
    if (!squares.parts.empty()) c.run(squares);
    reduce_over_ranks(c, params, unit.name, sums.t);
    c.run(moments);
    if (!scale_columns.parts.empty()) {
      c.run(scale_columns);
      c.run(of_updates);
    }
    reduce_over_ranks(c, params, unit.name, clipped_sums.t);
    c.run(clip);
    if (!scale_rows.parts.empty()) c.run(scale_rows);
  }

  RuleOptions o_;
  std::vector<UnitTensor> tensors_;
};

}  // namespace

std::unique_ptr<UpdateRule> make_adafactor(const RuleOptions& options) {
  return std::make_unique<AdafactorRule>(options);
}

}  // namespace athanor
