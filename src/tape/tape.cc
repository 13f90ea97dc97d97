// The tape: recording, gradients by slot, unwinding, fan-out and recomputation.
#include "tape/ctx.h"

namespace athanor {

Var Ctx::var(Buffer buffer, Remake remake) {
  Var v;
  v.buffer_ = std::move(buffer);
  v.slot_ = tape ? tape->next_slot++ : 0;
  v.remake_ = std::move(remake);
  return v;
}

Saved Ctx::save(const Var& v) const {
  Saved s;
  if (!recording()) return s;
  if (selective && v.remake_)
    s.remake_ = v.remake_;
  else
    s.buffer_ = v.buffer_;
  return s;
}

void Ctx::record(const char* op, UniqueFn<void(Ctx&)> backward) {
  if (recording()) tape->entries.push_back({op, std::move(backward)});
}

void Ctx::put(int slot, Buffer grad) {
  CHECK(!tape->grads.contains(slot), "a value got two gradients: it was consumed twice; use fork()");
  tape->grads.emplace(slot, std::move(grad));
}

Buffer Ctx::take(int slot) {
  auto it = tape->grads.find(slot);
  CHECK(it != tape->grads.end(), "a value has no gradient: it was never consumed");
  Buffer grad = std::move(it->second);
  tape->grads.erase(it);
  return grad;
}

void Ctx::backward() {
  while (!tape->entries.empty()) {
    Tape::Entry entry = std::move(tape->entries.back());
    tape->entries.pop_back();
    entry.backward(*this);
  }
}

std::pair<Var, Var> fork(Ctx& c, Var x) {
  Var a = c.var(x.keep()), b = c.var(x.keep());
  c.record("fork", [sx = x.slot(), sa = a.slot(), sb = b.slot()](Ctx& cc) {
    Buffer da = cc.take(sa), db = cc.take(sb);
    cc.run(Add{.y = da.t, .a = da.t, .b = db.t});
    cc.put(sx, std::move(da));
  });
  return {std::move(a), std::move(b)};
}

namespace {

// Runs fn on a fresh tape inside an outer one; slots stay unique, leftover gradients pass to the outer tape.
template <class Fn>
void on_inner_tape(Ctx& c, Fn&& fn) {
  Tape inner;
  inner.next_slot = c.tape->next_slot;
  std::swap(*c.tape, inner);
  fn();
  for (auto& [slot, grad] : c.tape->grads) inner.grads.emplace(slot, std::move(grad));
  inner.next_slot = c.tape->next_slot;
  std::swap(*c.tape, inner);
}

}  // namespace

Stream checkpoint(Ctx& c, Block block, Stream in) {
  if (!c.recording()) return block(c, std::move(in));
  Buffer res = in.res.keep(), delta = in.delta ? in.delta.keep() : Buffer{};
  const int res_slot = in.res.slot(), delta_slot = in.delta ? in.delta.slot() : -1;
  c.tape->recording = false;
  Stream out = block(c, std::move(in));
  c.tape->recording = true;
  c.record("checkpoint", [block = std::move(block), res = std::move(res), delta = std::move(delta), res_slot,
                          delta_slot, out_res = out.res.slot(), out_delta = out.delta.slot()](Ctx& cc) mutable {
    Buffer d_res = cc.take(out_res), d_delta = cc.take(out_delta);
    on_inner_tape(cc, [&] {
      Stream again{cc.var(std::move(res)), delta ? cc.var(std::move(delta)) : Var{}};
      const int in_res = again.res.slot(), in_delta = again.delta ? again.delta.slot() : -1;
      Stream redone = block(cc, std::move(again));
      cc.put(redone.res.slot(), std::move(d_res));
      cc.put(redone.delta.slot(), std::move(d_delta));
      redone = {};
      cc.backward();
      cc.tape->grads = [&] {  // rename the inner inputs to the outer slots
        std::map<int, Buffer> renamed;
        renamed.emplace(res_slot, cc.take(in_res));
        if (in_delta >= 0) renamed.emplace(delta_slot, cc.take(in_delta));
        return renamed;
      }();
    });
  });
  return out;
}

}  // namespace athanor
