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
  std::vector<double> averages() const { return averages_; }  // at most kMostAverages
  uint32_t momenta() const { return momenta_; }               // bit i: averages()[i] is a momentum
  bool exchanges(const ParamStore&, size_t unit) const;       // of a unit: see UpdateRule
  // One step over this rank's shard of all units, after StepControl; zeroes the shard's gradients.
  void step(Ctx&, ParamStore&, Tensor step_state);

 private:
  // Groups whose options differ only in weight decay.
  struct Bundle {
    RuleOptions options;
    std::vector<std::pair<size_t, bool>> pieces = {};  // piece numbers, and whether each decays
    std::unique_ptr<UpdateRule> rule = nullptr;
    Placed placed = {};
  };
  Bundle& bundle_of(const RuleOptions&);
  void place(Bundle&, size_t pieces);
  std::vector<Bundle> bundles_;
  std::vector<StateSpec> states_;
  std::vector<double> averages_;
  uint32_t momenta_ = 0;
};

}  // namespace athanor
