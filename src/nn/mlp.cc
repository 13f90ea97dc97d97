#include "nn/layers.h"

namespace athanor {
namespace {

// An activation's output is cheap to make again from its input, which backward keeps anyway.
template <class Bind>
Remake remake_of(Ctx& c, const Buffer& input, Shape out, Bind bind) {
  if (!c.recording() || !c.selective) return nullptr;
  return std::make_shared<UniqueFn<Buffer(Ctx&)>>([input, out, bind](Ctx& cc) {
    Buffer again = cc.alloc("activation again", out);
    cc.run(bind(again.t, input.t));
    return again;
  });
}

}  // namespace

Var gelu(Net n, Var x) {
  Ctx& c = n.c;
  const auto op = [](Tensor y, Tensor in) { return GeluFwd{.y = y, .x = in}; };
  Buffer y = c.alloc("gelu.y", x.t().shape), kept = x.keep();
  c.run(op(y.t, kept.t));
  Var out = c.var(std::move(y), remake_of(c, kept, kept.t.shape, op));
  c.record("gelu", [kept = std::move(kept), sx = x.slot(), s = out.slot()](Ctx& cc) {
    Buffer dy = cc.take(s);
    cc.run(GeluBwd{.dx = dy.t, .dy = dy.t, .x = kept.t});  // in place: dy has no other reader
    cc.put(sx, std::move(dy));
  });
  return out;
}

Var swiglu(Net n, Var gate_up) {
  Ctx& c = n.c;
  const auto op = [](Tensor y, Tensor gu) { return SwigluFwd{.y = y, .gu = gu}; };
  const Shape half{gate_up.t().rows(), gate_up.t().cols() / 2};
  Buffer y = c.alloc("swiglu.y", half), kept = gate_up.keep();
  c.run(op(y.t, kept.t));
  Var out = c.var(std::move(y), remake_of(c, kept, half, op));
  c.record("swiglu", [kept = std::move(kept), sx = gate_up.slot(), s = out.slot()](Ctx& cc) {
    Buffer dy = cc.take(s);
    cc.run(SwigluBwd{.dgu = kept.t, .dy = dy.t, .gu = kept.t});  // in place: its last reader
    cc.put(sx, kept);
  });
  return out;
}

}  // namespace athanor
