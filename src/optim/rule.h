// UpdateRule: computes new weights from gradients for some of the weights. A rule only declares its states; they are
// allocated, sharded and saved elsewhere.
#pragma once
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

// Neighbours of a unit, of which those before `decayed` decay; the streams of their random bits.
struct UpdateRun {
  size_t unit;
  int64_t begin, end, decayed;
  uint64_t stream, moment_stream;
};

struct KeptState {
  std::string_view name;  // in files; rules with states of the same name share buffers
  DType dtype;
  bool per_output = false;  // of a matrix: one number for each of its outputs, of which every rank has all
};

// What a rule works on, and where it finds what it declared.
struct Placed {
  std::vector<size_t> states = {};       // by states(): numbers of Unit::states
  std::vector<int> averages = {};        // by averages(): numbers of StepState::corrections
  std::vector<UpdateRange> ranges = {};  // in the order of units and places
  std::vector<UpdateRun> runs = {};      // the same, neighbours joined
};

class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  virtual std::vector<KeptState> states() const = 0;
  virtual std::vector<Average> averages() const { return {}; }
  // Whether ranks exchange what lies in the units of its weights, twice in each step: to whom needs it whole, and back.
  virtual bool exchanges() const { return false; }
  // One step, after StepControl has decided about it; zeroes the gradients.
  virtual void step(Ctx&, ParamStore&, const Placed&, Tensor step_state) = 0;
};

std::unique_ptr<UpdateRule> make_adamw(const RuleOptions&);  // and adam
std::unique_ptr<UpdateRule> make_sgd(const RuleOptions&);
std::unique_ptr<UpdateRule> make_lion(const RuleOptions&);
std::unique_ptr<UpdateRule> make_muon(const RuleOptions&);  // and normuon

// Ranges in the order of units and places; a run goes on while the next begins where it ends.
std::vector<UpdateRun> joined(const std::vector<UpdateRange>&);
// What this rank owns of the runs: lists for ops that work element by element. States are the m and v of `placed`, in
// this order, as far as it has them and they are kept of each element.
std::vector<UpdatePart> update_parts(const ParamStore&, const Placed&);

}  // namespace athanor
