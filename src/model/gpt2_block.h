// The block of GPT-2 and of vision transformers: LayerNorm, attention without RoPE, an MLP without a gate.
#pragma once
#include "model/model.h"

namespace athanor {

struct Gpt2Block {
  Norm norm1;
  Linear qkv, out;
  Norm norm2;
  Mlp mlp;
};
// Takes and returns the residual stream [N, C].
Var run(Net, const Gpt2Block&, int layer, Var in, const Batch&, const AttentionShape&);

}  // namespace athanor
