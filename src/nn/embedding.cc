#include "nn/layers.h"
#include "nn/rows.h"

namespace athanor {
namespace {

// Vocabulary-parallel: each token is looked up on one rank, and the first rank adds the positions, so that the sum over
// ranks is bit-identical to the result of one rank. The gradient is complete on all ranks, or gathered.
Var look_up(Net n, const Tensor& tokens, const Tensor& positions, Param wte, Param wpe, const VocabPart& rows) {
  Ctx& c = n.c;
  const Tensor w = n.params.value(wte);
  const bool cut = bool(n.params.vocab_part(wte));
  const bool adds_positions = wpe && (!cut || c.mesh.tensor().rank() == 0);
  Buffer y = c.alloc("embedding.y", {rows_of_stream(c, tokens.shape[0]), w.cols()});
  PartsOfRows parts = PartsOfRows::if_partial(c, y.t, cut);
  c.run(EmbeddingFwd{.y = parts.t(),
                     .tokens = tokens,
                     .positions = adds_positions ? positions : Tensor{},
                     .wte = w,
                     .wpe = adds_positions ? n.params.value(wpe) : Tensor{},
                     .part = rows});
  {
    const CollectiveSubject subject(n.params.spec(wte).name);
    parts.add_up(c);
  }
  Var out = c.var(std::move(y));
  c.record("embedding", [&params = n.params, tokens, positions, wte, wpe, cut, rows, s = out.slot()](Ctx& cc) {
    const CollectiveSubject subject(params.spec(wte).name);
    if (params.spec(wte).frozen) return void(cc.take(s));
    Buffer dy = cut ? all_rows(cc, cc.take(s)) : cc.take(s);
    cc.run(EmbeddingBwd{.dwte = params.grad(wte),
                        .dwpe = wpe ? params.grad(wpe) : Tensor{},
                        .dy = dy.t,
                        .tokens = tokens,
                        .positions = wpe ? positions : Tensor{},
                        .part = rows});
  });
  return out;
}

}  // namespace

Var embedding(Net n, const Batch& batch, Param wte, Param wpe) {
  return look_up(n, batch.tokens, batch.positions, wte, wpe, n.params.vocab_part(wte));
}

// The id of "no preceding token" is the vocabulary size, which no part of the vocabulary contains.
Var previous_embedding(Net n, const Batch& batch, Param wte) {
  const int64_t vocab = n.params.spec(wte).slices.at(0).shape[0];
  VocabPart part = n.params.vocab_part(wte);
  if (!part) part = {.first = 0, .count = vocab, .total = vocab};
  ++part.total;
  return look_up(n, batch.previous, {}, wte, {}, part);
}

}  // namespace athanor
