// UpdateRule: computes new weights from gradients for some of the weights. A rule declares its states; other code
// allocates, shards and saves them.
#pragma once
#include <algorithm>
#include <memory>
#include <string_view>
#include <vector>

#include "optim/groups.h"

namespace athanor {

// A piece of the parameters (ParamStore::pieces()) and the padding after it; each rank updates the part of the range
// that it owns.
struct UpdateRange {
  size_t piece;
  size_t unit;
  ParamStore::Range range;
  bool decays;
};

// Adjacent elements of a unit; weight decay applies to elements before `decayed`. Streams: random streams for
// stochastic rounding.
struct UpdateRun {
  size_t unit;
  int64_t begin, end, decayed;
  uint64_t stream, moment_stream;
};

struct KeptState {
  std::string_view name;  // name in checkpoint files; rules with states of the same name share buffers
  DType dtype;
  // Number of values per piece, which are replicated on all ranks; null: one value per element or block, sharded.
  std::vector<int64_t> (*sizes)(const ParamStore&) = nullptr;
  int64_t block = 1;            // elements that share a value
  int64_t aligned = 1;          // see StateSpec::aligned
  bool of_all_workers = false;  // identical on all workers
};

// The weights of a rule, or those within a stretch of a unit, and the locations of the rule's states and averages.
struct Placed {
  std::vector<size_t> states = {};         // indices into Unit::states, in the order of states()
  std::vector<int> averages = {};          // indices into StepState::corrections, in the order of averages()
  std::vector<UpdateRange> ranges = {};    // ordered by unit and position
  std::vector<UpdateRun> runs = {};        // `ranges` with adjacent ones merged
  size_t first_range = 0, all_ranges = 0;  // index of ranges[0] among all ranges of the rule, and their number
};

// One pass of a step, and its use of tensors that may be in host memory (param/state_stream.h): master weights, and the
// rule's states with one value per element or block.
struct UpdatePass {
  enum class Of : uint8_t { elements, whole_units, everything };  // unit of work of one run()
  enum class Use : uint8_t { no, reads, writes };
  Of of = Of::elements;
  Use masters = Use::writes, states = Use::writes;
};

class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  virtual std::vector<KeptState> states() const = 0;
  virtual std::vector<Average> averages() const { return {}; }
  // A step consists of these passes, in order; the last one is over elements. Passes over everything use no master
  // weights or states.
  virtual std::vector<UpdatePass> passes() const { return {{}}; }
  // Called after StepControl has decided about the step. The last pass zeroes the gradients.
  virtual void run(size_t pass, Ctx&, ParamStore&, const Placed&, Tensor step_state) = 0;
};

std::unique_ptr<UpdateRule> make_adamw(const RuleOptions&);  // for adamw and adam
// Rules after RuleOptions::freeze_step; before it, adamw or lamb runs with the same states.
std::unique_ptr<UpdateRule> make_one_bit_adam(const RuleOptions&);
std::unique_ptr<UpdateRule> make_one_bit_lamb(const RuleOptions&);
std::unique_ptr<UpdateRule> make_adamw_8bit(const RuleOptions&);
std::unique_ptr<UpdateRule> make_adafactor(const RuleOptions&);
std::unique_ptr<UpdateRule> make_sgd(const RuleOptions&);
std::unique_ptr<UpdateRule> make_lamb(const RuleOptions&);
std::unique_ptr<UpdateRule> make_lion(const RuleOptions&);
std::unique_ptr<UpdateRule> make_schedule_free_adamw(const RuleOptions&);
std::unique_ptr<UpdateRule> make_muon(const RuleOptions&);  // for muon and normuon

// Runs after the rules that update weights: scales the query and key weights of heads whose maximum attention logit
// (Ctx::max_attention_logits) exceeds the threshold (ops/qk_clip.h).
std::unique_ptr<UpdateRule> make_qk_clip(double threshold, uint64_t seed);

// Runs after all other rules: keeps a running average of the new weights, exponential or with equal weights.
std::unique_ptr<UpdateRule> make_average(const Average&);

// Merges adjacent ranges, which must be in the order of units and positions.
std::vector<UpdateRun> joined(const std::vector<UpdateRange>&);
// This rank's part of a run, with its unit.
struct OwnedRun {
  const ParamStore::Unit& unit;
  ParamStore::Range range;
  const UpdateRun& run;
};
std::vector<OwnedRun> owned_runs(const ParamStore&, const Placed&);
// Returns this rank's parts of the runs, for elementwise ops, in device memory. Includes m and v of `placed` if they
// exist and have one value per element. A pass should request only what it uses.
enum class PartsOf : uint8_t { weights_and_states, weights, states };
std::vector<UpdatePart> update_parts(const ParamStore&, const Placed&, PartsOf = PartsOf::weights_and_states);
// Calls visit(leaf, range of the unit's elements) for this rank's part of a tensor in each leaf (logical shard), if not
// empty.
template <class Visit>
void for_owned_leaves(const ParamStore& params, const ParamStore::Unit& unit, ParamStore::Range tensor, Visit visit) {
  const int64_t leaves = params.leaves(), size = unit.layout.numel / leaves;
  for (int64_t leaf = 0; leaf < leaves; ++leaf) {
    const ParamStore::Range range =
        unit.owned(std::max(tensor.begin, leaf * size), std::min(tensor.end, (leaf + 1) * size));
    if (range.begin < range.end) visit(leaf, range);
  }
}
// All-reduces the results that each rank computed on its shards, if the weights are sharded. `subject` names them in
// error messages.
void reduce_over_ranks(Ctx&, const ParamStore&, const std::string& subject, const Tensor& found,
                       Reduce how = Reduce::sum);
// Scales the update directions that were stored in place of the gradients down to an RMS of at most `limit` per tensor.
void clip_updates(Ctx&, const ParamStore&, const Placed&, double limit);
// Moves the weights against the directions that were stored in place of the gradients, with decoupled decay.
void move_along(Ctx&, const RuleOptions&, const ParamStore&, const Placed&, Tensor step_state);

// Sets the scalars that Adam's ops have in common.
template <class Op>
void set_adam(Op& op, const RuleOptions& o, const Placed& placed, Tensor step_state) {
  op.state = step_state;
  op.beta1 = o.beta1, op.beta2 = o.beta2, op.eps = o.eps, op.weight_decay = o.weight_decay;
  op.seed = o.seed;
  op.average1 = placed.averages[0], op.average2 = placed.averages[1];
  op.cautious = o.cautious;
}

}  // namespace athanor
