#include "nn/layers.h"
#include "nn/rows.h"

namespace athanor {

// With parts of the vocabulary every token is looked up on one rank, and the positions are added by the first, so that
// the sum is that of one rank to the bit. Its gradient is whole on all ranks, or gathered.
Var embedding(Net n, const Batch& batch, Param wte, Param wpe) {
  Ctx& c = n.c;
  const Tensor w = n.params.value(wte);
  const VocabPart part = n.params.vocab_part(wte);
  const bool adds_positions = wpe && (!part || c.mesh.tensor().rank() == 0);
  Buffer y = c.alloc("embedding.y", {rows_of_stream(c, batch.tokens.shape[0]), w.cols()});
  PartsOfRows parts = part ? PartsOfRows(c, y.t) : PartsOfRows();
  c.run(EmbeddingFwd{.y = part ? parts.t() : y.t,
                     .tokens = batch.tokens,
                     .positions = adds_positions ? batch.positions : Tensor{},
                     .wte = w,
                     .wpe = adds_positions ? n.params.value(wpe) : Tensor{},
                     .part = part});
  if (part) {
    const CollectiveSubject subject(n.params.spec(wte).name);
    parts.add_up(c);
  }
  Var out = c.var(std::move(y));
  c.record("embedding", [&params = n.params, batch, wte, wpe, part, s = out.slot()](Ctx& cc) {
    const CollectiveSubject subject(params.spec(wte).name);
    if (params.spec(wte).frozen) return void(cc.take(s));
    Buffer dy = part ? all_rows(cc, cc.take(s)) : cc.take(s);
    cc.run(EmbeddingBwd{.dwte = params.grad(wte),
                        .dwpe = wpe ? params.grad(wpe) : Tensor{},
                        .dy = dy.t,
                        .tokens = batch.tokens,
                        .positions = wpe ? batch.positions : Tensor{},
                        .part = part});
  });
  return out;
}

}  // namespace athanor
