// Adam-mini: AdamW with one second moment for all weights of a block: a head of queries or keys, an output of another
// matrix, a token of an embedding or the head, all of a vector. Sums of squares are added over the ranks that share the
// tensor, in the order of the leaves' shards where bits must not depend on the number of ranks; all ranks keep all
// second moments.
#include <algorithm>
#include <span>

#include "optim/rule.h"

namespace athanor {
namespace {

// The outputs of a tensor in files: rows, or columns where rows are inputs. Of the first `grouped`, `group` share a
// block.
struct Outputs {
  int64_t count, inputs, grouped = 0, group = 1;
  bool columns = false;
  int64_t blocks() const { return BlockMoments::Part::blocks(count, grouped, group); }
  OutputRange range(int64_t first) const { return {first, columns ? count : inputs, columns}; }
};

Outputs outputs_of(const ParamStore& params, const ParamStore::Piece& piece) {
  const ParamSpec& spec = params.specs()[size_t(piece.param)];
  const Shape& shape = piece.slice->shape;
  if (shape.rank == 1) return {.count = 1, .inputs = shape.numel()};
  const int out = spec.in_out ? 1 : 0;
  Outputs o{.count = shape[out], .inputs = shape[1 - out], .columns = spec.in_out};
  const Cut& cut = spec.cut;
  if (spec.role != Role::matrix || cut.axis != out || cut.parts.size() != 3) return o;
  const int64_t before = spec.in_out ? 0 : piece.slice->offset / shape[1];  // outputs of the parameter's other tensors
  o.grouped = std::clamp<int64_t>(cut.parts[0] + cut.parts[1] - before, 0, o.count);  // queries and keys, not values
  o.group = cut.whole;
  return o;
}

std::vector<int64_t> blocks_of(const ParamStore& params) {
  std::vector<int64_t> sizes;
  for (const auto& piece : params.pieces()) sizes.push_back(outputs_of(params, piece).blocks());
  return sizes;
}

class AdamMiniRule final : public UpdateRule {
 public:
  explicit AdamMiniRule(const RuleOptions& options) : o_(options) {}
  std::vector<KeptState> states() const override { return {{"m", o_.m}, {"v_block", DType::f32, blocks_of}}; }
  std::vector<Average> averages() const override { return {{o_.beta1, true}, {o_.beta2}}; }
  void step(Ctx& c, ParamStore& params, const Placed& placed, Tensor step_state) override {
    if (tensors_.empty()) find_tensors(params, placed);
    Sgd move = move_along(o_, params, placed, step_state);
    const std::vector<OwnedRun> runs = owned_runs(params, placed);
    for (size_t begin = 0, end = 0; begin < tensors_.size(); begin = end) {
      while (end < tensors_.size() && tensors_[end].unit == tensors_[begin].unit) ++end;
      Momentum momentum{.parts = {}, .state = step_state, .beta = o_.beta1, .nesterov = false, .seed = o_.seed};
      for (size_t i = 0; i < runs.size(); ++i)
        if (const UpdatePart& p = move.parts[i]; runs[i].run.unit == tensors_[begin].unit)
          momentum.parts.push_back({.m = p.m, .grad = p.grad, .moment_stream = p.moment_stream, .first = p.first});
      make_directions(c, params, placed, std::span(tensors_).subspan(begin, end - begin), momentum, step_state);
    }
    for (UpdatePart& part : move.parts) part.m = {};
    if (!move.parts.empty()) c.run(move);
  }

 private:
  struct UnitTensor {
    size_t unit;
    ParamStore::Range range;  // elements of the unit
    Outputs outputs;
    int64_t blocks;  // where its second moments begin in the unit's state
  };

  // From the plan: the same in every step.
  void find_tensors(const ParamStore& params, const Placed& placed) {
    const auto pieces = params.pieces();
    for (const UpdateRange& r : placed.ranges) {
      const ParamStore::Piece& piece = pieces[r.piece];
      tensors_.push_back({.unit = r.unit,
                          .range = {piece.offset, piece.offset + piece.slice->shape.numel()},
                          .outputs = outputs_of(params, piece),
                          .blocks = params.units()[r.unit]->states[placed.states[1]].first_of(r.piece)});
    }
  }

  // Replaces the gradients of this rank's shard of a unit by first moments over the roots of second ones.
  void make_directions(Ctx& c, const ParamStore& params, const Placed& placed, std::span<const UnitTensor> tensors,
                       const Momentum& momentum, Tensor step_state) const {
    const ParamStore::Unit& unit = *params.units()[tensors.front().unit];
    const int64_t leaves = params.leaves();
    int64_t outputs = 0;
    for (const UnitTensor& t : tensors) outputs += t.outputs.count;
    const Buffer sums = c.alloc("squares of outputs", DType::f64, {leaves * outputs});
    const Buffer factors = c.alloc("factors of outputs", DType::f32, {outputs});
    OutputSquares squares{.parts = {}};
    BlockMoments moments{.parts = {},
                         .state = step_state,
                         .beta2 = o_.beta2,
                         .eps = o_.eps,
                         .average1 = placed.averages[0],
                         .average2 = placed.averages[1]};
    ScaleOutputs scale{.parts = {}};
    int64_t at = 0;
    for (const UnitTensor& t : tensors) {
      const int64_t count = t.outputs.count;
      const Tensor own_factors = factors.t.slice(at, at + count);
      for_owned_leaves(params, unit, t.range, [&](int64_t leaf, const ParamStore::Range& range) {
        const Tensor grad = unit.part(unit.grad, range);
        const OutputRange of = t.outputs.range(range.begin - t.range.begin);
        squares.parts.push_back({.sums = sums.t.slice(leaves * at + leaf * count, leaves * at + (leaf + 1) * count),
                                 .x = grad,
                                 .range = of});
        scale.parts.push_back({.x = grad, .factors = own_factors, .range = of});
      });
      moments.parts.push_back({.v = unit.states[placed.states[1]].t.slice(t.blocks, t.blocks + t.outputs.blocks()),
                               .factors = own_factors,
                               .sums = {sums.t.at(leaves * at), DType::f64, {leaves, count}},
                               .inputs = t.outputs.inputs,
                               .grouped = t.outputs.grouped,
                               .group = t.outputs.group});
      at += count;
    }
    c.run(Fill{.x = sums.t});
    if (!squares.parts.empty()) c.run(squares);
    add_over_ranks(c, params, unit.name, sums.t);
    if (!momentum.parts.empty()) c.run(momentum);
    c.run(moments);
    if (!scale.parts.empty()) c.run(scale);
  }

  RuleOptions o_;
  std::vector<UnitTensor> tensors_;
};

}  // namespace

std::unique_ptr<UpdateRule> make_adam_mini(const RuleOptions& options) {
  return std::make_unique<AdamMiniRule>(options);
}

}  // namespace athanor
