#include "model/gpt2_block.h"

namespace athanor {

Var run(Net n, const Gpt2Block& w, int layer, Var in, const Batch& batch, const AttentionShape& shape) {
  auto [h, x] = fork_norm(n, std::move(in), w.norm1, &w.qkv);
  x = attention(n, linear(n, std::move(x), w.qkv), batch, {}, shape, layer, w.out);
  Var after = add_branch(n, layer, std::move(h), w.out.w,
                         [&, &x = x](Var residual) { return linear(n, std::move(x), w.out, std::move(residual)); });
  auto [h2, y] = fork_norm(n, std::move(after), w.norm2, &w.mlp.up);
  return add_branch(n, layer, std::move(h2), w.mlp.down.w,
                    [&, &y = y](Var residual) { return mlp(n, std::move(y), w.mlp, std::move(residual)); });
}

}  // namespace athanor
