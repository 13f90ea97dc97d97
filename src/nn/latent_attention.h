// Multi-head latent attention [DeepSeek-AI 2024, "DeepSeek-V2", sec. 2.1; arXiv:2405.04434]: queries, keys and values
// are linear functions of normalized latent vectors, and RoPE rotates a part of each head. The softmax and its sums are
// those of attention() (nn/layers.h), whose value heads are as wide as query heads: narrower ones are padded with
// zeros.
#pragma once
#include "nn/layers.h"
#include "ops/latent_heads.h"

namespace athanor {

struct LatentAttention {
  Linear q_a;    // [rank, C]; optional: without it q reads the layer's input
  Norm q_norm;   // of q_a's output
  Linear q;      // [H D, rank or C]
  Linear kv_a;   // [latent + rope, C]: the latent vector, then the key channels that RoPE rotates, of all heads
  Norm kv_norm;  // of the latent vector
  Linear kv_b;   // [H (nope + value), latent]
};

// [N, C] -> [N, 3 H D]: packed q, k and v of attention(), which are already rotated. A tensor-parallel rank has a
// part of the heads, and computes the latent vectors of its rows of the residual stream.
Var latent_heads(Net, Var x, const LatentAttention&, const Batch&, Tensor cos_sin, const LatentShape&);
// [N, H D] -> [N, H value]: attention's output without the padding.
Var value_heads(Net, Var y, const LatentShape&);

}  // namespace athanor
