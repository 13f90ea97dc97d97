#include "nn/layers.h"

namespace athanor {

Var embedding(Net n, const Batch& batch, Param wte, Param wpe) {
  Ctx& c = n.c;
  const Tensor w = n.params.value(wte);
  Buffer y = c.alloc("embedding.y", {batch.tokens.shape[0], w.cols()});
  c.run(EmbeddingFwd{.y = y.t,
                     .tokens = batch.tokens,
                     .positions = wpe ? batch.positions : Tensor{},
                     .wte = w,
                     .wpe = wpe ? n.params.value(wpe) : Tensor{}});
  Var out = c.var(std::move(y));
  c.record("embedding", [&params = n.params, batch, wte, wpe, s = out.slot()](Ctx& cc) {
    Buffer dy = cc.take(s);
    cc.run(EmbeddingBwd{.dwte = params.grad(wte),
                        .dwpe = wpe ? params.grad(wpe) : Tensor{},
                        .dy = dy.t,
                        .tokens = batch.tokens,
                        .positions = wpe ? batch.positions : Tensor{}});
  });
  return out;
}

}  // namespace athanor
