// Terms that are added to attention's v: rows of a table by token [Zhou et al. 2024, "Value Residual Learning"; value
// embeddings of modded-nanogpt], and the first block's v.
#include <utility>

#include "nn/adapters.h"
#include "nn/taps.h"

namespace athanor {
namespace {

Tensor values_of(const Tensor& qkv, const AttentionShape& s) {
  const int64_t first = (s.heads + s.kv_heads) * s.head_dim;
  return qkv.columns(first, first + s.kv_heads * s.head_dim);
}

Buffer copy_of_values(Ctx& c, const Tensor& qkv, const AttentionShape& s) {
  Buffer copy = c.alloc("values", {qkv.rows(), s.kv_heads * s.head_dim});
  c.run(GatedSum{.y = copy.t, .x = values_of(qkv, s), .z = {}});
  return copy;
}

}  // namespace

Tensor Tap::State::sum_of(Ctx& c) {
  if (!grad) {
    grad = c.alloc("tap.grad", value.t.shape);
    c.run(Fill{.x = grad.t});
  }
  return grad.t;
}

void tap_rows(Net n, const Batch& batch, Param table, Tap& tap) {
  Ctx& c = n.c;
  const Tensor w = n.params.value(table);
  tap.state_ = std::make_shared<Tap::State>();
  tap.state_->value = c.alloc("value embedding", {batch.tokens.shape[0], w.cols()});
  c.run(EmbeddingFwd{.y = tap.state_->value.t, .tokens = batch.tokens, .positions = {}, .wte = w, .wpe = {}});
  c.record("value embedding", [&params = n.params, table, tokens = batch.tokens, state = tap.state_](Ctx& cc) {
    if (state->grad && !params.spec(table).frozen)
      cc.run(
          EmbeddingBwd{.dwte = params.grad(table), .dwpe = {}, .dy = state->grad.t, .tokens = tokens, .positions = {}});
    *state = {};
  });
}

Tap values_to_come() {
  Tap tap;
  tap.state_ = std::make_shared<Tap::State>();
  return tap;
}

Var set_values(Ctx& c, Var qkv, const AttentionShape& shape, const Tap& tap) {
  if (!tap.state_->value) tap.state_->value = copy_of_values(c, qkv.t(), shape);
  if (!c.recording()) return qkv;
  Var out = c.var(qkv.keep());
  c.record("first values", [shape, state = tap.state_, sx = qkv.slot(), s = out.slot()](Ctx& cc) {
    Buffer d = cc.own(cc.take(s));
    d.amax = {};
    const Tensor dv = values_of(d.t, shape);
    if (state->grad) cc.run(GatedSum{.y = dv, .x = dv, .z = state->grad.t});
    *state = {};
    cc.put(sx, std::move(d));
  });
  return out;
}

// Works in place: producers save their inputs, not this output.
Var add_to_values(Net n, Var qkv, const AttentionShape& shape, const ValueTerm& term) {
  Ctx& c = n.c;
  const auto value = [](const ParamStore& params, Param p) { return p ? params.value(p) : Tensor{}; };
  const Tensor v = values_of(qkv.t(), shape);
  const Buffer before = c.recording() && term.own ? copy_of_values(c, qkv.t(), shape) : Buffer{};
  const Buffer gate = term.gate ? term.gate.keep() : Buffer{};
  c.run(GatedSum{.y = v,
                 .x = v,
                 .z = term.other.value(),
                 .gate = gate.t,
                 .a = value(n.params, term.own),
                 .b = value(n.params, term.factor),
                 .factor = term.scale});
  Var out = c.var(qkv.keep());
  c.record("add_to_values", [&params = n.params, shape, value, before, gate, own = term.own, factor = term.factor,
                             scale = term.scale, state = term.other.state_, sg = term.gate ? term.gate.slot() : -1,
                             sx = qkv.slot(), s = out.slot()](Ctx& cc) {
    Buffer d = cc.own(cc.take(s));
    const Tensor dv = values_of(d.t, shape);
    Buffer dgate = gate ? cc.alloc("gate.grad", gate.t.shape) : Buffer{};
    const auto gradient = [&](Param p) { return p ? gradient_of({cc, params}, p) : Buffer{}; };
    const Buffer da = gradient(own), db = gradient(factor);
    cc.run(GatedSumBwd{.dx = dv,
                       .dz = state->sum_of(cc),
                       .dgate = dgate.t,
                       .da = da.t,
                       .db = db.t,
                       .dy = dv,
                       .x = before.t,
                       .z = state->value.t,
                       .gate = gate.t,
                       .a = value(params, own),
                       .b = value(params, factor),
                       .factor = scale});
    d.amax = {};
    if (sg >= 0) cc.put(sg, std::move(dgate));
    cc.put(sx, std::move(d));
  });
  return out;
}

}  // namespace athanor
