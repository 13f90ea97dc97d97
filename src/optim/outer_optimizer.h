// OuterOptimizer: local updates [Douillard et al. 2023, "DiLoCo"; Therien et al. 2025, "MuLoCo"]. Each worker trains
// its own weights w for a round of H steps. At the round's end the workers average how far they have moved from the
// global weights, in f32, and Nesterov momentum moves these:
//   d = mean over workers of (theta - w);  v = mu v + d;  theta -= eta (d + mu v);  w = theta
// With fragments [Douillard et al. 2025, "Streaming DiLoCo", without overlap] the units take turns within a round.
// Decides nothing about when a round is saved or evaluated.
#pragma once
#include <vector>

#include "device/memory_plan.h"
#include "param/param_store.h"

namespace athanor {

struct OuterOptions {
  int64_t steps = 0;  // H: of a round; 0: no local updates
  double learning_rate = 0.7, momentum = 0.9;
  int64_t fragments = 1;  // unit u belongs to fragment u % fragments
};

class OuterOptimizer {
 public:
  OuterOptimizer(const OuterOptions&, ParamStore&);
  // States of the trained weights: kGlobalWeightState, and kOuterMomentumState unless momentum is 0.
  std::vector<StateSpec> states() const;
  void plan(MemoryPlan&);      // after that of the parameters
  void commit(Device&) const;  // once the plan is
  int64_t fragments() const { return options_.fragments; }
  // Whether a fragment's round ends with this step, counted from 1; rounds of fragments end evenly spaced.
  bool round_ends(int64_t fragment, int64_t step) const;
  // Both without collectives in a dry run; all ranks call them together.
  void start(Ctx&);  // the global weights are those of this worker
  void end_round(Ctx&, int64_t fragment);

 private:
  // A range of this rank's elements that are trained.
  struct Part {
    const ParamStore::Unit& unit;
    ParamStore::Range range;
    Tensor theta, momentum;  // [n] f32; momentum: may be absent
    Tensor master() const { return unit.masters_on_device(range); }
  };
  // fragment: of the units, or -1: of all. Masters and states are in device memory meanwhile; those of whole units, so
  // that sums over workers are the same calls wherever their home is.
  template <class Fn>
  void for_each(Ctx&, int64_t fragment, bool writes_masters, const Fn& fn) const;
  static void read_weights(Ctx&, const Part&, const Tensor& to);
  void update(Ctx&, const Part&) const;

  OuterOptions options_;
  ParamStore& params_;
  size_t first_state_ = 0;  // of the states, in those of the parameters
  Tensor rates_;            // StepState, as the update rule reads it
};

}  // namespace athanor
