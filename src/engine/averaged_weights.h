// AveragedWeights: puts the moving averages that an optimizer keeps (ema_decay) in the place of the weights that
// products read, and the weights back. Masters and averages stay what they are, but for masters that are the weights
// themselves: those are set aside.
#pragma once
#include <vector>

#include "device/memory_plan.h"
#include "param/param_store.h"

namespace athanor {

class AveragedWeights {
 public:
  explicit AveragedWeights(ParamStore& params) : params_(params) {}
  void plan(MemoryPlan&);  // after that of the parameters
  // Both without collectives in a dry run; all ranks call them together.
  void put_in(Ctx&);
  void take_out(Ctx&);

 private:
  // fn(averages, the weights in their place, where those are set aside or nothing), of this rank's elements.
  template <class Fn>
  void for_each(const Fn& fn) const;
  bool set_aside() const;  // weights cannot be made from masters again
  ParamStore& params_;
  size_t state_ = 0;
  std::vector<Tensor> aside_;  // of each unit: weights, in the order of its averages
};

}  // namespace athanor
