// UpdateRule: computes new weights from gradients for some of the weights. A rule only declares its states; they are
// allocated, sharded and saved elsewhere.
#pragma once
#include <algorithm>
#include <memory>
#include <string_view>
#include <vector>

#include "optim/groups.h"

namespace athanor {

// A piece of the parameters (ParamStore::pieces()) and the padding after it; a rank updates the range of it that it
// owns.
struct UpdateRange {
  size_t piece;
  size_t unit;
  ParamStore::Range range;
  bool decays;
};

// Adjacent elements of a unit, those before `decayed` with weight decay; and the streams of their random bits.
struct UpdateRun {
  size_t unit;
  int64_t begin, end, decayed;
  uint64_t stream, moment_stream;
};

struct KeptState {
  std::string_view name;  // in files; rules with states of the same name share buffers
  DType dtype;
  // How many values each piece has, replicated on all ranks; null: one per element or block.
  std::vector<int64_t> (*sizes)(const ParamStore&) = nullptr;
  int64_t block = 1;            // elements that share a value
  int64_t aligned = 1;          // StateSpec::aligned
  bool of_all_workers = false;  // the same on all workers
};

// Weights of a rule, all or those within a stretch of a unit, and the locations of its declared states and averages.
struct Placed {
  std::vector<size_t> states = {};         // indices into Unit::states, in the order of states()
  std::vector<int> averages = {};          // indices into StepState::corrections, in the order of averages()
  std::vector<UpdateRange> ranges = {};    // ordered by unit and position
  std::vector<UpdateRun> runs = {};        // the same, adjacent ones merged
  size_t first_range = 0, all_ranges = 0;  // number of ranges[0] among all of the rule's, and how many these are
};

// A part of a step, and what it computes with of what may be in host memory (param/state_stream.h): of masters, and of
// the rule's states without sizes.
struct UpdatePass {
  enum class Of : uint8_t { elements, whole_units, everything };  // least that it is run on at a time
  enum class Use : uint8_t { no, reads, writes };
  Of of = Of::elements;
  Use masters = Use::writes, states = Use::writes;
};

class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  virtual std::vector<KeptState> states() const = 0;
  virtual std::vector<Average> averages() const { return {}; }
  // A step is these passes, one after the other; the last one is of elements. Passes of everything use no masters or
  // states.
  virtual std::vector<UpdatePass> passes() const { return {{}}; }
  // After StepControl has decided about the step. The last pass zeroes the gradients.
  virtual void run(size_t pass, Ctx&, ParamStore&, const Placed&, Tensor step_state) = 0;
};

std::unique_ptr<UpdateRule> make_adamw(const RuleOptions&);  // and adam
// After RuleOptions::freeze_step; before, the rule is adamw or lamb, with the same states.
std::unique_ptr<UpdateRule> make_one_bit_adam(const RuleOptions&);
std::unique_ptr<UpdateRule> make_one_bit_lamb(const RuleOptions&);
std::unique_ptr<UpdateRule> make_adamw_8bit(const RuleOptions&);
std::unique_ptr<UpdateRule> make_adafactor(const RuleOptions&);
std::unique_ptr<UpdateRule> make_sgd(const RuleOptions&);
std::unique_ptr<UpdateRule> make_lamb(const RuleOptions&);
std::unique_ptr<UpdateRule> make_lion(const RuleOptions&);
std::unique_ptr<UpdateRule> make_schedule_free_adamw(const RuleOptions&);
std::unique_ptr<UpdateRule> make_muon(const RuleOptions&);  // and normuon

// Runs after the rules that move weights: scales those of queries and keys whose scores, in Ctx::max_attention_logits,
// are above the threshold (ops/qk_clip.h).
std::unique_ptr<UpdateRule> make_qk_clip(double threshold, uint64_t seed);

// Runs after all other rules: keeps an average of the weights they have made, decaying or of equal weights.
std::unique_ptr<UpdateRule> make_average(const Average&);

// Merges adjacent ranges, given in the order of units and positions.
std::vector<UpdateRun> joined(const std::vector<UpdateRange>&);
// This rank's ranges of the runs, each with its unit.
struct OwnedRun {
  const ParamStore::Unit& unit;
  ParamStore::Range range;
  const UpdateRun& run;
};
std::vector<OwnedRun> owned_runs(const ParamStore&, const Placed&);
// This rank's parts of the runs, for elementwise ops, in device memory. States: the m and v of `placed`, as far as they
// exist and have one value per element. A pass asks only for what it uses.
enum class PartsOf : uint8_t { weights_and_states, weights, states };
std::vector<UpdatePart> update_parts(const ParamStore&, const Placed&, PartsOf = PartsOf::weights_and_states);
// Calls visit(leaf, elements of the unit) for what this rank has of a tensor in the shard of each leaf, if anything.
template <class Visit>
void for_owned_leaves(const ParamStore& params, const ParamStore::Unit& unit, ParamStore::Range tensor, Visit visit) {
  const int64_t leaves = params.leaves(), size = unit.layout.numel / leaves;
  for (int64_t leaf = 0; leaf < leaves; ++leaf) {
    const ParamStore::Range range =
        unit.owned(std::max(tensor.begin, leaf * size), std::min(tensor.end, (leaf + 1) * size));
    if (range.begin < range.end) visit(leaf, range);
  }
}
// Combines what each rank has found of its shards, where there are shards: sums, or maxima. `subject` names it in
// errors.
void reduce_over_ranks(Ctx&, const ParamStore&, const std::string& subject, const Tensor& found,
                       Reduce how = Reduce::sum);
// Scales the update directions that have taken the gradients' place down to a root mean square of `limit` in each
// tensor.
void clip_updates(Ctx&, const ParamStore&, const Placed&, double limit);
// Moves the weights against the directions that have taken the gradients' place, with decoupled decay.
void move_along(Ctx&, const RuleOptions&, const ParamStore&, const Placed&, Tensor step_state);

// The scalars that Adam's ops share.
template <class Op>
void set_adam(Op& op, const RuleOptions& o, const Placed& placed, Tensor step_state) {
  op.state = step_state;
  op.beta1 = o.beta1, op.beta2 = o.beta2, op.eps = o.eps, op.weight_decay = o.weight_decay;
  op.seed = o.seed;
  op.average1 = placed.averages[0], op.average2 = placed.averages[1];
  op.cautious = o.cautious;
}

}  // namespace athanor
