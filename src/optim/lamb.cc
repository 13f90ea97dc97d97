// LAMB: Adam's directions with decay, scaled per tensor to the norm of its weights. Squared norms are all-reduced over
// the ranks that shard the tensor; with rank-invariant sums they are added in the order of logical shards, so that
// results do not depend on the number of ranks.
#include "optim/lamb.h"

#include <algorithm>
#include <span>

namespace athanor {
namespace {

class LambRule final : public UpdateRule {
 public:
  explicit LambRule(const RuleOptions& options) : o_(options) {}
  std::vector<KeptState> states() const override { return {{"m", o_.m}, {"v", o_.v}}; }
  std::vector<Average> averages() const override { return {{o_.beta1, true}, {o_.beta2}}; }
  std::vector<UpdatePass> passes() const override { return lamb_passes(); }
  void run(size_t pass, Ctx& c, ParamStore& params, const Placed& placed, Tensor step_state) override {
    if (pass == 0) return begin(c, params, placed, step_state);
    if (pass == 2) return move_without_decay(c, o_, params, placed, step_state);
    reduce_over_ranks(c, params, "norms of tensors", sums_.t);
    if (o_.rule == RuleName::onebit_lamb) keep_ratios(c, params, placed, step_state);
    scale_by_trust_ratios(c, params, placed, params.leaves(), sums_.t);
    sums_ = {};
  }

 private:
  // Stores the directions in place of the gradients, and the squared norms of weights and directions.
  void begin(Ctx& c, const ParamStore& params, const Placed& placed, Tensor step_state) {
    const int64_t leaves = params.leaves();
    if (!sums_) {
      sums_ = c.alloc("squared norms of tensors", DType::f64, {2 * leaves * int64_t(placed.all_ranges)});
      c.run(Fill{.x = sums_.t});
    }
    const std::vector<OwnedRun> runs = owned_runs(params, placed);
    const std::vector<UpdatePart> parts = update_parts(params, placed, PartsOf::states);
    for (size_t begin = 0, end = 0; begin < placed.ranges.size(); begin = end) {
      const size_t u = placed.ranges[begin].unit;
      while (end < placed.ranges.size() && placed.ranges[end].unit == u) ++end;
      const F32Masters masters(c, *params.units()[u]);
      make_directions(c, runs, parts, placed, masters, step_state);
      const int64_t first = int64_t(placed.first_range + begin), last = int64_t(placed.first_range + end);
      add_squares(c, std::span(placed.ranges).subspan(begin, end - begin), masters, leaves,
                  sums_.t.slice(2 * leaves * first, 2 * leaves * last));
    }
  }

  // Updates the average trust ratios, which onebit_lamb uses after the freeze.
  void keep_ratios(Ctx& c, const ParamStore& params, const Placed& placed, const Tensor& step_state) const {
    AverageTrustRatio op{.parts = {}, .state = step_state};
    const int64_t leaves = params.leaves();
    for (size_t i = 0; i < placed.ranges.size(); ++i)
      op.parts.push_back({.sums = {sums_.t.at(2 * leaves * int64_t(i)), DType::f64, {2, leaves}},
                          .trust = trust_of(params, placed, placed.ranges[i])});
    if (!op.parts.empty()) c.run(op);
  }

  // Replaces the gradients in this rank's shard of a unit by directions.
  void make_directions(Ctx& c, const std::vector<OwnedRun>& runs, const std::vector<UpdatePart>& parts,
                       const Placed& placed, const F32Masters& masters, Tensor step_state) const {
    AdamDirection op{.parts = {}};
    set_adam(op, o_, placed, step_state);
    for (size_t i = 0; i < runs.size(); ++i)
      if (const UpdatePart& p = parts[i]; &runs[i].unit == &masters.unit)
        op.parts.push_back({.w = masters.part(runs[i].range),
                            .m = p.m,
                            .v = p.v,
                            .grad = p.grad,
                            .decayed = p.decayed,
                            .moment_stream = p.moment_stream,
                            .first = p.first});
    if (!op.parts.empty()) c.run(op);
  }

  // sums: per tensor [2, leaves]; entries that this rank does not own stay 0.
  static void add_squares(Ctx& c, std::span<const UpdateRange> tensors, const F32Masters& masters, int64_t leaves,
                          Tensor sums) {
    const ParamStore::Unit& unit = masters.unit;
    const int64_t size = unit.layout.numel / leaves;
    SquaredNorm norms{.out = sums, .x = {}};
    bool any = false;
    for (const UpdateRange& tensor : tensors)
      for (const bool of_weights : {true, false})
        for (int64_t leaf = 0; leaf < leaves; ++leaf) {
          const ParamStore::Range range =
              unit.owned(std::max(tensor.range.begin, leaf * size), std::min(tensor.range.end, (leaf + 1) * size));
          const bool empty = range.begin >= range.end;
          any = any || !empty;
          norms.x.push_back(empty        ? Tensor{nullptr, DType::f32, {0}}
                            : of_weights ? masters.part(range)
                                         : unit.part(unit.grad, range));
        }
    if (any) c.run(norms);
  }

  RuleOptions o_;
  Buffer sums_;  // kept from the first to the second pass; per tensor [2, leaves]
};

}  // namespace

F32Masters::F32Masters(Ctx& c, const ParamStore::Unit& of) : unit(of) {
  if (unit.master.dtype == DType::f32) return;
  const Tensor own = unit.masters_on_device(unit.shard);
  copy = c.alloc("masters in f32", DType::f32, {unit.shard.end - unit.shard.begin});
  if (unit.is_split())
    c.run(JoinMaster{.master = copy.t, .param = unit.own(unit.value), .rest = own});
  else
    c.run(Cast{.y = copy.t, .x = own});
}

std::vector<UpdatePass> lamb_passes() {
  using Of = UpdatePass::Of;
  using Use = UpdatePass::Use;
  return {{Of::whole_units, Use::reads}, {Of::everything, Use::no, Use::no}, {.states = Use::no}};
}

Tensor trust_of(const ParamStore& params, const Placed& placed, const UpdateRange& tensor) {
  const ParamStore::State& state = params.units()[tensor.unit]->states[placed.states[kTrustState]];
  const int64_t first = state.first_of(tensor.piece);
  return state.t.slice(first, first + 2);
}

void scale_by_trust_ratios(Ctx& c, const ParamStore& params, const Placed& placed, int64_t leaves, const Tensor& sums) {
  ScaleByTrustRatio op{.parts = {}};
  for (size_t i = 0; i < placed.ranges.size(); ++i) {
    const UpdateRange& tensor = placed.ranges[i];
    const ParamStore::Unit& unit = *params.units()[tensor.unit];
    const ParamStore::Range range = unit.owned(tensor.range.begin, tensor.range.end);
    if (range.begin < range.end)
      op.parts.push_back(
          {.grad = unit.part(unit.grad, range), .sums = {sums.at(2 * leaves * int64_t(i)), DType::f64, {2, leaves}}});
  }
  if (!op.parts.empty()) c.run(op);
}

void move_without_decay(Ctx& c, const RuleOptions& options, const ParamStore& params, const Placed& placed,
                        Tensor step_state) {
  RuleOptions without_decay = options;
  without_decay.weight_decay = 0, without_decay.cautious = false;
  move_along(c, without_decay, params, placed, step_state);
}

std::unique_ptr<UpdateRule> make_lamb(const RuleOptions& options) { return std::make_unique<LambRule>(options); }

}  // namespace athanor
