// Optimizer: the update rules of a run's groups, their states, and one step of all.
#pragma once
#include <memory>
#include <vector>

#include "optim/rule.h"

namespace athanor {

class Optimizer {
 public:
  // Assigns all trained weights to rules; freezes those of frozen groups.
  Optimizer(const OptimizerOptions&, ParamStore&);
  std::vector<StateSpec> states() const { return states_; }
  const std::vector<Average>& averages() const { return averages_; }  // at most kMostAverages
  // One step over this rank's shard of all units, after StepControl; zeroes the shard's gradients.
  void step(Ctx&, ParamStore&, Tensor step_state);

 private:
  // Groups whose options differ only in weight decay; the last ones may be QK-clip and the average of all weights.
  struct Bundle {
    RuleOptions options;
    std::vector<std::pair<size_t, bool>> pieces = {};  // piece numbers, and whether each decays
    std::unique_ptr<UpdateRule> rule = nullptr;
    Placed placed = {};
  };
  Bundle& bundle_of(const RuleOptions&);
  Bundle average_of_all(const Average&) const;
  static Bundle clip_of_scores(const OptimizerOptions&, const ParamStore&);
  void place(Bundle&, const ParamStore&);
  void find_ranges(const ParamStore&);
  std::vector<Bundle> bundles_;
  std::vector<StateSpec> states_;
  std::vector<Average> averages_;
  bool ranges_known_ = false;
};

}  // namespace athanor
