// Optimizer: the update rules of a run's groups, their states, and one step of all rules. If master weights and states
// are offloaded to host memory, passes run stretch by stretch (param/state_stream.h); otherwise each pass runs once, on
// all weights of its rule.
#pragma once
#include <memory>
#include <vector>

#include "optim/rule.h"
#include "param/state_stream.h"

namespace athanor {

class Optimizer {
 public:
  // Assigns all trained weights to rules; freezes the weights of frozen groups.
  Optimizer(const OptimizerOptions&, ParamStore&);
  std::vector<StateSpec> states() const { return states_; }
  const std::vector<Average>& averages() const { return averages_; }  // at most kMostAverages
  // True if gradients stay local to each worker once `compressed` is true (RuleOptions::freeze_step).
  bool compresses() const { return !bundles_.empty() && bundles_.front().warm_up != nullptr; }
  // True if a rule reads or writes the gradients of several units at once.
  bool whole_gradients() const;
  // Runs one step over this rank's shard of all units, after StepControl; zeroes the shard's gradients.
  void step(Ctx&, ParamStore&, Tensor step_state, bool compressed = false);

 private:
  // Groups whose options differ only in weight decay share a bundle. The last bundles may be QK-clip and the average of
  // all weights.
  struct Bundle {
    RuleOptions options;
    std::vector<std::pair<size_t, bool>> pieces = {};  // index of a piece; true if it has weight decay
    std::unique_ptr<UpdateRule> rule = nullptr;
    std::unique_ptr<UpdateRule> warm_up = nullptr;  // rule used until gradients are compressed; may be null
    Placed placed = {};
  };
  // Passes that run stretch by stretch: one pass of one rule, or the last passes of all rules.
  struct Sweep {
    struct Part {
      size_t bundle, pass;
      Placed placed;
    };
    std::vector<StateStretch> stretches = {};
    std::vector<std::vector<Part>> parts = {};  // parts of each stretch
  };
  Bundle& bundle_of(const RuleOptions&);
  Bundle average_of_all(const Average&) const;
  static Bundle clip_of_scores(const OptimizerOptions&, const ParamStore&);
  void place(Bundle&, const ParamStore&);
  void find_ranges(const ParamStore&);
  void find_sweeps(const ParamStore&);
  Sweep sweep_of(const ParamStore&, const std::vector<std::pair<size_t, size_t>>& passes) const;
  void run_sweep(Ctx&, ParamStore&, const Sweep&, Tensor step_state);
  std::vector<Bundle> bundles_;
  std::vector<Sweep> sweeps_;  // in the order of a step's passes; empty for passes over everything
  std::vector<StateSpec> states_;
  std::vector<Average> averages_;
  bool ranges_known_ = false;
};

}  // namespace athanor
