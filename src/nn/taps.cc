#include "nn/taps.h"

#include <utility>

#include "nn/adapters.h"

namespace athanor {

Var set_tap(Ctx& c, Var h, Tap& tap) {
  tap.state_ = std::make_shared<Tap::State>();
  tap.state_->value = h.keep();
  if (!c.recording()) return h;
  Var out = c.var(h.keep());
  c.record("tap", [state = tap.state_, sx = h.slot(), s = out.slot()](Ctx& cc) {
    Buffer d = cc.own(cc.take(s));
    if (state->grad) cc.run(Add{.y = d.t, .a = d.t, .b = state->grad.t});
    *state = {};
    cc.put(sx, std::move(d));
  });
  return out;
}

Var scaled_sum(Net n, Var x, Param a, const Tap& z, Param b) {
  Ctx& c = n.c;
  const auto value = [](const ParamStore& params, Param p) { return p ? params.value(p) : Tensor{}; };
  Buffer y = c.alloc("scaled_sum.y", x.t().shape);
  c.run(ScaledSum{.y = y.t, .x = x.t(), .z = z.value(), .a = value(n.params, a), .b = value(n.params, b)});
  Var out = c.var(std::move(y));
  c.record("scaled_sum", [&params = n.params, a, b, value, kept = x.keep(), state = z.state_, sx = x.slot(),
                          s = out.slot()](Ctx& cc) {
    Buffer dy = cc.own(cc.take(s));
    const Buffer da = a ? gradient_of({cc, params}, a) : Buffer{}, db = b ? gradient_of({cc, params}, b) : Buffer{};
    cc.run(ScaledSumBwd{.dx = dy.t,
                        .dz = state->sum_of(cc),
                        .da = da.t,
                        .db = db.t,
                        .dy = dy.t,
                        .x = kept.t,
                        .z = state->value.t,
                        .a = value(params, a),
                        .b = value(params, b)});
    dy.amax = {};
    cc.put(sx, std::move(dy));
  });
  return out;
}

}  // namespace athanor
