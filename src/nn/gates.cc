// Sigmoid gates, one per row: for attention heads, and for the previous token's embedding.
#include <utility>

#include "nn/adapters.h"

namespace athanor {

Var gated_sum(Net n, Var x, Var z, Var gate, Param b) {
  Ctx& c = n.c;
  const auto value = [](const ParamStore& params, Param p) { return p ? params.value(p) : Tensor{}; };
  Buffer y = c.alloc("gated_sum.y", z.t().shape);
  c.run(GatedSum{.y = y.t, .x = x ? x.t() : Tensor{}, .z = z.t(), .gate = gate.t(), .b = value(n.params, b)});
  Var out = c.var(std::move(y));
  c.record("gated_sum", [&params = n.params, value, b, vz = z.keep(), vg = gate.keep(), sx = x ? x.slot() : -1,
                         sz = z.slot(), sg = gate.slot(), s = out.slot()](Ctx& cc) {
    const Buffer dy = sx < 0 ? cc.take(s) : cc.own(cc.take(s));
    Buffer dz = cc.alloc("gated_sum.dz", vz.t.shape), dgate = cc.alloc("gate.grad", vg.t.shape);
    cc.run(Fill{.x = dz.t});
    const Buffer db = b ? gradient_of({cc, params}, b) : Buffer{};
    cc.run(GatedSumBwd{.dx = {},
                       .dz = dz.t,
                       .dgate = dgate.t,
                       .da = {},
                       .db = db.t,
                       .dy = dy.t,
                       .x = {},
                       .z = vz.t,
                       .gate = vg.t,
                       .b = value(params, b)});
    cc.put(sg, std::move(dgate));
    cc.put(sz, std::move(dz));
    if (sx >= 0) cc.put(sx, dy);  // the gradient of x is dy itself
  });
  return out;
}

}  // namespace athanor
