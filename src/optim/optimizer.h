// Optimizer: the update rules of a run's groups, what they keep, and one step of all.
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
  std::vector<bool> exchanges(const ParamStore&) const;       // by unit: see UpdateRule
  // One step over the part of all units that this rank owns, after StepControl has decided about it; zeroes its
  // gradients.
  void step(Ctx&, ParamStore&, Tensor step_state);

 private:
  // Groups whose options differ in nothing but whether their weights decay.
  struct Bundle {
    RuleOptions options;
    std::vector<std::pair<size_t, bool>> pieces = {};  // their numbers, and whether they decay
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
