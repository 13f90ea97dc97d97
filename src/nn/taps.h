// Values that layers beyond the next read, too: of the residual stream, such as the normed embedding, and those that
// are added to the values of attention.
#pragma once
#include <memory>

#include "nn/layers.h"

namespace athanor {

struct ValueTerm;

// A value that is kept for later readers. Their gradients are added up in the order in which backward
// meets them, and join the value's own where the tap was set.
class Tap {
 public:
  explicit operator bool() const { return state_ != nullptr; }
  const Tensor& value() const { return state_->value.t; }

 private:
  friend Var set_tap(Ctx&, Var h, Tap&);
  friend Var scaled_sum(Net, Var x, Param a, const Tap&, Param b);
  friend void tap_rows(Net, const Batch&, Param table, Tap&);
  friend Tap values_to_come();
  friend Var set_values(Ctx&, Var qkv, const AttentionShape&, const Tap&);
  friend Var add_to_values(Net, Var qkv, const AttentionShape&, const ValueTerm&);
  struct State {
    Buffer value, grad;
    Tensor sum_of(Ctx& c);  // the gradient, zeros at first
  };
  std::shared_ptr<State> state_;  // shared with the tape, which outlives the forward pass
};

// The taps of one forward pass. They are set between blocks, never in one, which recomputation may run twice, but for
// the first block's values.
struct Taps {
  Tap embedding;
  std::vector<Tap> blocks;      // of the outputs that are read later; none of the others
  std::vector<Tap> value_rows;  // of each table of value embeddings: [N, K D]
  Tap first_values;             // of the first block, before anything is added to them: [N, K D]
};

Var set_tap(Ctx&, Var h, Tap&);  // h itself
// a x + b z of a tap's value z; a and b [1] are optional parameters, 1 where absent.
Var scaled_sum(Net, Var x, Param a, const Tap& z, Param b);

// The rows of the batch's tokens in a table [V, K D], of which ranks that share heads have columns.
void tap_rows(Net, const Batch&, Param table, Tap&);
// A tap that set_values() sets within a block, which recomputation may run twice.
Tap values_to_come();
Var set_values(Ctx&, Var qkv, const AttentionShape&, const Tap&);  // qkv [N, (H + 2K) D] itself

// One term of the values of attention: v becomes own v + factor scale sigmoid(gate) other.
struct ValueTerm {
  const Tap& other;   // [N, K D]
  Param own, factor;  // [1], optional: 1
  Var gate = {};      // [N, K], optional: without, sigmoid(gate) is 1
  float scale = 1;
};
Var add_to_values(Net, Var qkv, const AttentionShape&, const ValueTerm&);

}  // namespace athanor
