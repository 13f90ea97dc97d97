// Taps: values that several later layers read, such as the normalized embedding, block outputs, and values that are
// added to attention's v.
#pragma once
#include <memory>

#include "nn/layers.h"

namespace athanor {

struct ValueTerm;

// A value kept for later readers. Their gradients are summed in the order in which backward processes them; the sum is
// added to the value's own gradient where the tap was set.
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
    Tensor sum_of(Ctx& c);  // the gradient sum, zero at first
  };
  std::shared_ptr<State> state_;  // shared with the tape, which outlives the forward pass
};

// Taps of one forward pass. They are set between blocks, never inside one, because recomputation may run a block twice;
// the only exception is the first block's values.
struct Taps {
  Tap embedding;
  std::vector<Tap> blocks;      // block outputs that are read later; empty for other blocks
  std::vector<Tap> value_rows;  // one per table of value embeddings: [N, K D]
  Tap first_values;             // the first block's v before anything is added: [N, K D]
};

Var set_tap(Ctx&, Var h, Tap&);  // returns h itself
// a x + b z, where z is the tap's value; a and b [1] are optional parameters, 1 if absent.
Var scaled_sum(Net, Var x, Param a, const Tap& z, Param b);

// Looks up the batch's tokens in a table [V, K D]; with tensor parallelism a rank has the columns of its heads.
void tap_rows(Net, const Batch&, Param table, Tap&);
// Returns a tap that set_values() sets inside a block, which recomputation may run twice.
Tap values_to_come();
Var set_values(Ctx&, Var qkv, const AttentionShape&, const Tap&);  // returns qkv [N, (H + 2K) D] itself

// Term added to attention's v: v becomes own v + factor scale sigmoid(gate) other.
struct ValueTerm {
  const Tap& other;   // [N, K D]
  Param own, factor;  // [1], optional; 1 if absent
  Var gate = {};      // [N, K], optional; if absent, sigmoid(gate) is 1
  float scale = 1;
};
Var add_to_values(Net, Var qkv, const AttentionShape&, const ValueTerm&);

}  // namespace athanor
