// UpdateRule: how the gradients of some weights become new weights. What a rule keeps is allocated, sharded and saved
// by others from its declaration alone.
#pragma once
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "optim/groups.h"

namespace athanor {

// A piece of the parameters (ParamStore::pieces()) with the padding behind it; a rank updates what it owns of that.
struct UpdateRange {
  size_t piece;
  size_t unit;
  ParamStore::Range range;
  bool decays;
};

struct KeptState {
  std::string_view name;  // in files; rules that keep states of one name share their buffers
  DType dtype;
};

// Where a rule finds what it declared.
struct Placed {
  std::vector<size_t> states;  // by states(): numbers of Unit::states
  std::vector<int> averages;   // by averages(): numbers of StepState::corrections
};

class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  virtual std::vector<KeptState> states() const = 0;
  virtual std::vector<double> averages() const { return {}; }  // decays of averages that start at 0; first the momentum
  // Whether ranks exchange what lies in the units of its weights, twice in each step: to whom needs it whole, and back.
  virtual bool exchanges() const { return false; }
  // One step of these ranges, in the order of units and places, after StepControl has decided about it; zeroes their
  // gradients.
  virtual void step(Ctx&, ParamStore&, std::span<const UpdateRange>, const Placed&, Tensor step_state) = 0;
};

std::unique_ptr<UpdateRule> make_adamw(const RuleOptions&);  // and adam
std::unique_ptr<UpdateRule> make_sgd(const RuleOptions&);
std::unique_ptr<UpdateRule> make_lion(const RuleOptions&);
std::unique_ptr<UpdateRule> make_muon(const RuleOptions&);

// What this rank owns of the ranges, neighbours joined: lists for ops that work element by element. States are the m
// and v of `placed`, in this order, as far as it has them.
std::vector<UpdatePart> update_parts(const ParamStore&, std::span<const UpdateRange>, const Placed&);

}  // namespace athanor
