// OuterOptimizer: local updates [Douillard et al. 2023, "DiLoCo"; Therien et al. 2025, "MuLoCo"]. Each worker trains
// its own weights w for a round of H steps. At the end of a round the workers average their distances from the global
// weights, in f32, and Nesterov momentum updates the global weights:
//   d = mean over workers of (theta - w);  v = mu v + d;  theta -= eta (d + mu v);  w = theta
// With fragments [Douillard et al. 2025, "Streaming DiLoCo", without overlap] the units take turns within a round. The
// caller decides when to save or evaluate.
#pragma once
#include <vector>

#include "device/memory_plan.h"
#include "param/param_store.h"

namespace athanor {

struct OuterOptions {
  int64_t steps = 0;  // H: steps per round; 0 = no local updates
  double learning_rate = 0.7, momentum = 0.9;
  int64_t fragments = 1;  // unit u belongs to fragment u % fragments
};

class OuterOptimizer {
 public:
  OuterOptimizer(const OuterOptions&, ParamStore&);
  // States of the trained weights: kGlobalWeightState, and kOuterMomentumState unless momentum is 0.
  std::vector<StateSpec> states() const;
  void plan(MemoryPlan&);      // call after the parameters' plan()
  void commit(Device&) const;  // call after the plan's commit()
  int64_t fragments() const { return options_.fragments; }
  // True if a fragment's round ends with this step, counted from 1; the ends of the fragments' rounds are evenly
  // spaced.
  bool round_ends(int64_t fragment, int64_t step) const;
  // start() and end_round() skip collectives in a dry run; all ranks call them together.
  void start(Ctx&);  // sets the global weights to this worker's weights
  void end_round(Ctx&, int64_t fragment);

 private:
  // A range of trained elements on this rank.
  struct Part {
    const ParamStore::Unit& unit;
    ParamStore::Range range;
    Tensor theta, momentum;  // [n] f32; momentum is optional
    Tensor master() const { return unit.masters_on_device(range); }
  };
  // Calls fn for the parts of one fragment, or of all units if fragment is -1, with masters and states in device
  // memory. Works on whole units, so that the all-reduces are the same calls wherever masters and states are stored.
  template <class Fn>
  void for_each(Ctx&, int64_t fragment, bool writes_masters, const Fn& fn) const;
  static void read_weights(Ctx&, const Part&, const Tensor& to);
  void update(Ctx&, const Part&) const;

  OuterOptions options_;
  ParamStore& params_;
  size_t first_state_ = 0;  // index of the first outer state among the parameters' states
  Tensor rates_;            // StepState, as the update rule reads it
};

}  // namespace athanor
