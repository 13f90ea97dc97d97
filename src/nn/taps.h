// Values of the residual stream that layers beyond the next read, too, such as the normed embedding.
#pragma once
#include <memory>

#include "nn/layers.h"

namespace athanor {

// A value of the stream that is kept for later readers. Their gradients are added up in the order in which backward
// meets them, and join the stream's own where the tap was set.
class Tap {
 public:
  explicit operator bool() const { return state_ != nullptr; }
  const Tensor& value() const { return state_->value.t; }

 private:
  friend Var set_tap(Ctx&, Var h, Tap&);
  friend Var scaled_sum(Net, Var x, Param a, const Tap&, Param b);
  struct State {
    Buffer value, grad;
  };
  std::shared_ptr<State> state_;  // shared with the tape, which outlives the forward pass
};

// The taps of one forward pass. They are set between blocks, never in one, which recomputation may run twice.
struct Taps {
  Tap embedding;
  std::vector<Tap> blocks;  // of the outputs that are read later; none of the others
};

Var set_tap(Ctx&, Var h, Tap&);  // h itself
// a x + b z of a tap's value z; a and b [1] are optional parameters, 1 where absent.
Var scaled_sum(Net, Var x, Param a, const Tap& z, Param b);

}  // namespace athanor
