// AveragedWeights: puts the averages of the weights that an optimizer keeps (ema_decay, tail_average_start,
// schedule_free_adamw), or the global weights of local updates, in the place of the weights that products read, and the
// weights back. Masters and averages stay what they are, but for masters that are the weights themselves: those are set
// aside.
#pragma once
#include <vector>

#include "device/memory_plan.h"
#include "param/param_store.h"
#include "param/state_stream.h"

namespace athanor {

class AveragedWeights {
 public:
  explicit AveragedWeights(ParamStore& params) : params_(params) {}
  void plan(MemoryPlan&);  // after that of the parameters
  // Both without collectives in a dry run; all ranks call them together.
  void put_in(Ctx&);
  void take_out(Ctx&);

 private:
  // A range of this rank's elements that have averages.
  struct Part {
    const ParamStore::Unit& unit;
    ParamStore::Range range;
    Tensor weights, aside;  // [n]; aside: where the weights are set aside, or nothing
  };
  Part part(size_t unit, ParamStore::Range) const;
  void put_in_averages(Ctx&) const;
  std::vector<StateStretch> weights_and(StatesUsed) const;
  static void add_weights(Ctx&, const Part&, const Tensor& average);
  bool set_aside() const;  // weights cannot be made from masters again
  ParamStore& params_;
  size_t state_ = 0;
  bool minus_weight_ = false;  // the state is the average minus the weight
  std::vector<Tensor> aside_;  // of each unit: weights, in the order of its averages
};

}  // namespace athanor
