// The tape: recording, gradients by slot, backward, fan-out and recomputation.
#include <utility>

#include "tape/block_inputs.h"

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

void Ctx::weight_half(UniqueFn<void(Ctx&)> half) {
  if (tape && tape->puts_off_weights)
    tape->weight_halves.push_back(std::move(half));
  else
    half(*this);
}

void Ctx::run_weight_halves() {
  for (UniqueFn<void(Ctx&)>& waiting : tape->weight_halves) {
    UniqueFn<void(Ctx&)> half = std::move(waiting);
    half(*this);
  }
  tape->weight_halves.clear();
}

Buffer Ctx::own(Buffer grad) {
  if (!grad.is_shared()) return grad;
  Buffer copy = alloc("copy of a gradient", grad.t.dtype, grad.t.shape);
  run(Cast{.y = copy.t, .x = grad.t});
  return copy;
}

std::pair<Var, Var> fork(Ctx& c, Var x) {
  Var a = c.var(x.keep()), b = c.var(x.keep());
  c.record("fork", [sx = x.slot(), sa = a.slot(), sb = b.slot()](Ctx& cc) {
    Buffer da = cc.own(cc.take(sa)), db = cc.take(sb);
    cc.run(Add{.y = da.t, .a = da.t, .b = db.t});
    da.amax = {};
    cc.put(sx, std::move(da));
  });
  return {std::move(a), std::move(b)};
}

Var add(Ctx& c, Var a, Var b) {
  Buffer y = c.alloc("sum", a.t().shape);
  c.run(Add{.y = y.t, .a = a.t(), .b = b.t()});
  Var out = c.var(std::move(y));
  c.record("add", [sa = a.slot(), sb = b.slot(), s = out.slot()](Ctx& cc) {
    Buffer d = cc.take(s);
    d.amax = {};
    cc.put(sa, d);
    cc.put(sb, std::move(d));
  });
  return out;
}

std::pair<Var, Var> fork_columns(Ctx& c, Var x, int64_t columns) {
  Buffer first = c.alloc("first columns", {x.t().rows(), columns});
  c.run(GatedSum{.y = first.t, .x = x.t().columns(0, columns), .z = {}});
  Var all = c.var(x.keep(), std::move(x.remake_)), part = c.var(std::move(first));
  all.kept_ = x.kept_;
  c.record("fork_columns", [columns, sx = x.slot(), sa = all.slot(), sp = part.slot()](Ctx& cc) {
    Buffer d = cc.own(cc.take(sa)), dp = cc.take(sp);
    const Tensor to = d.t.columns(0, columns);
    cc.run(GatedSum{.y = to, .x = to, .z = dp.t});
    d.amax = {};
    cc.put(sx, std::move(d));
  });
  return {std::move(all), std::move(part)};
}

namespace {

// Runs fn on a new inner tape. Slots stay unique, and gradients that fn does not take move to the outer tape.
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

Var checkpoint(Ctx& c, Block block, Var in) {
  if (!c.recording()) return block(c, std::move(in));
  Buffer kept = in.keep();
  const int64_t number = c.block_inputs ? c.block_inputs->keep(c, std::exchange(kept, {})) : -1;
  const int slot = in.slot();
  const Tensor asked = in.asked_amax();
  c.tape->recording = false;
  const Tensor statistics = std::exchange(c.quantization.statistics, {});  // the pass in backward counts each value
  Var out = block(c, std::move(in));
  c.quantization.statistics = statistics;
  c.tape->recording = true;
  c.record("checkpoint",
           [block = std::move(block), kept = std::move(kept), number, asked, slot, s = out.slot()](Ctx& cc) mutable {
             Buffer d = cc.take(s);
             on_inner_tape(cc, [&] {
               Var again = cc.var(number < 0 ? std::move(kept) : cc.block_inputs->bring(cc, number));
               const int inner = again.slot();
               again.asks_amax(asked);
               Var redone = block(cc, std::move(again));
               cc.put(redone.slot(), std::move(d));
               redone = {};
               cc.backward();
               Buffer d_in = cc.take(inner);
               cc.put(slot, std::move(d_in));  // this slot belongs to the outer tape
             });
           });
  return out;
}

void Ctx::expert_exchange(Tensor in, Tensor out, Stream on) {
  if (on == Stream::compute) count_rows(expert_sums, out);
  if (arena.recording()) return;
  Communicator& group = mesh.experts();
  const int64_t rows = out.rows() / group.size();
  std::vector<Tensor> sent, received;
  for (int64_t r = 0; r < group.size(); ++r) {
    sent.push_back(out.slice(r * rows, (r + 1) * rows));
    received.push_back(in.slice(r * rows, (r + 1) * rows));
  }
  group.all_to_all(sent, received, on);
}

TensorPass Ctx::begin_expert_exchange(Tensor in, Tensor out) {
  count_rows(expert_sums, out);
  return begin_pass(expert_sums, out, true, [&](Stream stream) { expert_exchange(in, out, stream); });
}

}  // namespace athanor
