// UpdateRule: computes new weights from gradients for some of the weights. A rule only declares its states; they are
// allocated, sharded and saved elsewhere.
#pragma once
#include <memory>
#include <span>
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

struct KeptState {
  std::string_view name;  // in files; rules with states of the same name share buffers
  DType dtype;
};

// Locations of a rule's declared states and averages.
struct Placed {
  std::vector<size_t> states;  // by states(): numbers of Unit::states
  std::vector<int> averages;   // by averages(): numbers of StepState::corrections
};

class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  virtual std::vector<KeptState> states() const = 0;
  virtual std::vector<double> averages() const { return {}; }  // decays of averages that start at 0; first the momentum
  // Whether ranks exchange data of the rule's units twice per step: matrices to the ranks that process them, and
  // updates back.
  virtual bool exchanges() const { return false; }
  // One step for these ranges, ordered by unit and position, after StepControl; zeroes their gradients.
  virtual void step(Ctx&, ParamStore&, std::span<const UpdateRange>, const Placed&, Tensor step_state) = 0;
};

std::unique_ptr<UpdateRule> make_adamw(const RuleOptions&);  // and adam
std::unique_ptr<UpdateRule> make_sgd(const RuleOptions&);
std::unique_ptr<UpdateRule> make_lion(const RuleOptions&);
std::unique_ptr<UpdateRule> make_muon(const RuleOptions&);

// This rank's parts of the ranges, adjacent ones merged, for elementwise ops. States: the m and v of `placed`, as far
// as they exist.
std::vector<UpdatePart> update_parts(const ParamStore&, std::span<const UpdateRange>, const Placed&);

}  // namespace athanor
