// Dropout of residual branches in training: drops whole sequences, which is stochastic depth [Huang et al. 2016], or
// elements [Srivastava et al. 2014].
#include <optional>
#include <utility>

#include "base/rng.h"
#include "nn/layers.h"
#include "nn/rows.h"

namespace athanor {
void run_drop_path(Ctx& c, DropPath op, bool own_rows) {
  const bool shares = own_rows && shares_rows(c);
  const int pieces = shares ? c.row_pieces : 1, ranks = shares ? c.mesh.tensor().size() : 1;
  const int rank = shares ? c.mesh.tensor().rank() : 0;
  const Tensor y = op.y, x = op.x, residual = op.residual;
  op.state = c.dropping.state, op.first = c.dropping.first, op.seed = c.seed, op.rows = c.dropping.rows;
  for (int i = 0; i < pieces; ++i) {
    op.y = piece_of(y, pieces, i), op.x = piece_of(x, pieces, i);
    if (residual) op.residual = piece_of(residual, pieces, i);
    op.rows.row = (int64_t{i} * ranks + rank) * op.y.rows();
    c.run(op);
  }
}

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
  const bool elements = by == DropBy::element;
  run_drop_path(c, {.y = y.t,
                    .x = branch.t(),
                    .residual = residual ? residual.t() : Tensor{},
                    .stream = stream,
                    .p = p,
                    .elements = elements});
  Var out = c.var(std::move(y));
  const std::optional<int> sr = residual ? std::optional(residual.slot()) : std::nullopt;
  c.record("drop_path", [elements, p, stream, sr, sx = branch.slot(), s = out.slot()](Ctx& cc) {
    Buffer dy = cc.take(s), dx = cc.alloc("drop_path.dx", dy.t.shape);
    run_drop_path(cc, {.y = dx.t, .x = dy.t, .stream = stream, .p = p, .elements = elements});
    cc.put(sx, std::move(dx));
    if (sr) cc.put(*sr, std::move(dy));
  });
  return out;
}

}  // namespace athanor
