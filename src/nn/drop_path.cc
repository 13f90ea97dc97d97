// Dropout of residual branches in training: drops whole sequences, which is stochastic depth [Huang et al. 2016], or
// elements [Srivastava et al. 2014].
#include <optional>
#include <utility>

#include "base/rng.h"
#include "nn/layers.h"
#include "nn/rows.h"

namespace athanor {
namespace {

// With sequence parallelism each of Ctx::row_pieces pieces of the stream is sharded over the ranks.
void run_drop_path(Ctx& c, const Tensor& y, const Tensor& x, const Tensor& residual, DropBy by, float p,
                   uint64_t stream) {
  const Dropping& d = c.dropping;
  const int pieces = shares_rows(c) ? c.row_pieces : 1, ranks = shares_rows(c) ? c.mesh.tensor().size() : 1;
  const int rank = shares_rows(c) ? c.mesh.tensor().rank() : 0;
  for (int i = 0; i < pieces; ++i) {
    const Tensor part = piece_of(y, pieces, i);
    SequenceRows rows = d.rows;
    rows.row = (int64_t{i} * ranks + rank) * part.rows();
    c.run(DropPath{.y = part,
                   .x = piece_of(x, pieces, i),
                   .residual = residual ? piece_of(residual, pieces, i) : Tensor{},
                   .state = d.state,
                   .first = d.first,
                   .seed = c.seed,
                   .stream = stream,
                   .p = p,
                   .elements = by == DropBy::element,
                   .rows = rows});
  }
}

}  // namespace

// Linear mode: the l-th of L blocks, counted from 1, has l / L times the last block's probability [Huang et al. 2016,
// eq. 4].
float drop_rate(const Ctx& c, int layer) {
  const Dropping& d = c.dropping;
  if (d.first.shape.rank == 0) return 0;
  const bool uniform = d.depth.mode == StochasticDepthMode::uniform;
  return uniform ? d.depth.rate : d.depth.rate * float(layer + 1) / float(d.layers);
}

float hidden_dropout(const Ctx& c) { return c.dropping.first ? c.dropping.hidden : 0; }

Var drop_path(Net n, Var residual, Var branch, DropBy by, float p, const std::string& name) {
  Ctx& c = n.c;
  const uint64_t stream = stream_of(by == DropBy::element ? name + " elements" : name);
  Buffer y = c.alloc("drop_path.y", branch.t().shape);
  run_drop_path(c, y.t, branch.t(), residual ? residual.t() : Tensor{}, by, p, stream);
  Var out = c.var(std::move(y));
  const std::optional<int> sr = residual ? std::optional(residual.slot()) : std::nullopt;
  c.record("drop_path", [by, p, stream, sr, sx = branch.slot(), s = out.slot()](Ctx& cc) {
    Buffer dy = cc.take(s), dx = cc.alloc("drop_path.dx", dy.t.shape);
    run_drop_path(cc, dx.t, dy.t, {}, by, p, stream);
    cc.put(sx, std::move(dx));
    if (sr) cc.put(*sr, std::move(dy));
  });
  return out;
}

}  // namespace athanor
