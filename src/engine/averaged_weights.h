// AveragedWeights: replaces the weights that GEMMs read by the averages that an optimizer keeps (averaging.ema_decay,
// averaging.tail_start, schedule_free_adamw) or by the global weights of local updates, and later restores the weights.
// Master weights and averages do not change. Where the master weights are themselves the weights that GEMMs read, they
// are saved to a copy first.
#pragma once
#include <vector>

#include "device/memory_plan.h"
#include "param/param_store.h"
#include "param/state_stream.h"

namespace athanor {

class AveragedWeights {
 public:
  explicit AveragedWeights(ParamStore& params) : params_(params) {}
  void plan(MemoryPlan&);  // after plan() of the parameters
  // Called by all ranks together; neither runs collectives in a dry run.
  void put_in(Ctx&);
  void take_out(Ctx&);

 private:
  // Range of this rank's elements that have averages.
  struct Part {
    const ParamStore::Unit& unit;
    ParamStore::Range range;
    Tensor weights, aside;  // [n]; aside: saved copy of the weights, or empty
  };
  Part part(size_t unit, ParamStore::Range) const;
  void put_in_averages(Ctx&) const;
  std::vector<StateStretch> weights_and(StatesUsed) const;
  static void add_weights(Ctx&, const Part&, const Tensor& average);
  bool set_aside() const;  // true if weights must be saved because they cannot be recomputed from master weights
  ParamStore& params_;
  size_t state_ = 0;
  bool minus_weight_ = false;  // the state is the average minus the weight
  std::vector<Tensor> aside_;  // saved weights of each unit, in the order of the averages
};

}  // namespace athanor
