// Ctx: everything a layer needs, passed explicitly, so that several models and ranks can live in one process.
// Tape: what forward code leaves behind to unwind its own backward. Var: the right to consume a value once.
#pragma once
#include <map>
#include <memory>
#include <vector>

#include "base/unique_fn.h"
#include "comm/mesh.h"
#include "device/arena.h"
#include "ops/ops.h"
#include "tape/recipe.h"

namespace athanor {

struct Ctx;

// Makes a value again from what is kept anyway, to the same bits (selective recomputation).
using Remake = std::shared_ptr<UniqueFn<Buffer(Ctx&)>>;

// Move-only: a value is consumed once, fan-out is an explicit fork(). Ownership is the liveness analysis, and no
// gradient is ever accumulated behind the scenes.
class Var {
 public:
  Var() = default;
  Var(Var&&) = default;
  Var& operator=(Var&&) = default;
  Var(const Var&) = delete;
  Var& operator=(const Var&) = delete;

  const Tensor& t() const { return buffer_.t; }
  int slot() const { return slot_; }
  explicit operator bool() const { return slot_ >= 0; }
  Buffer keep() const { return buffer_; }  // shares the memory, not the right to consume
  void producer_keeps_it() { kept_ = true; }

 private:
  friend struct Ctx;
  Buffer buffer_;
  int slot_ = -1;
  Remake remake_;
  bool kept_ = false;  // for the backward of whoever made it
};

// A value kept for backward: its bytes, or the way to make them again.
class Saved {
 public:
  Buffer get(Ctx& c) const { return remake_ ? (*remake_)(c) : buffer_; }

 private:
  friend struct Ctx;
  Buffer buffer_;
  Remake remake_;
};

class Tape {
 public:
  struct Entry {
    const char* op;
    UniqueFn<void(Ctx&)> backward;
  };
  std::vector<Entry> entries;
  std::map<int, Buffer> grads;  // by slot
  bool recording = true;
  int next_slot = 0;
};

struct Ctx {
  Ops& ops;
  Device& device;
  Arena& arena;
  ProcessMesh& mesh;
  const Recipe& recipe;
  Tape* tape = nullptr;    // null: forward only
  bool selective = false;  // recompute what Remake can instead of keeping it

  Buffer alloc(std::string_view name, DType dtype, Shape shape) { return arena.alloc(name, dtype, shape); }
  Buffer alloc(std::string_view name, Shape shape) { return arena.alloc(name, recipe.compute, shape); }

  // Checks the op, lends it its scratch memory and launches it.
  template <class Op>
  void run(const Op& op) {
    op.check();
    const size_t bytes = ops.scratch(op);
    Buffer scratch = bytes ? arena.alloc("scratch", DType::u8, {int64_t(bytes)}) : Buffer{};
    ops.run(op, scratch.t.data);
  }

  // Collectives; a dry run leaves them out.
  void all_reduce(Communicator& group, Tensor x) {
    if (!arena.recording()) group.all_reduce(x, Reduce::sum, Lane::compute);
  }
  void all_gather(Communicator& group, Tensor full, Tensor shard) {
    if (!arena.recording()) group.all_gather(full, shard, Lane::compute);
  }
  void reduce_scatter(Communicator& group, Tensor shard, Tensor full) {
    if (!arena.recording()) group.reduce_scatter(shard, full, Reduce::sum, Lane::compute);
  }
  void exchange(Communicator& group, Tensor out, Tensor in, int peer) {
    if (!arena.recording()) group.exchange(out, in, peer, Lane::compute);
  }

  // Runs call(Lane::comm) beside the compute lane, after what that was given so far. Its result may be used, and its
  // memory freed, after wait().
  using Ticket = std::unique_ptr<Event>;
  template <class Call>
  Ticket beside(Call&& call) {
    if (arena.recording()) return nullptr;
    device.wait(Lane::comm, *device.record(Lane::compute));
    call(Lane::comm);
    return device.record(Lane::comm);
  }
  void wait(Ticket ticket) {
    if (ticket) device.wait(Lane::compute, *ticket);
  }

  bool recording() const { return tape && tape->recording; }
  Var var(Buffer buffer, Remake remake = nullptr);
  Saved save(const Var& v) const;
  // Backward has the value without any cost in memory: its producer keeps it, or it is made again.
  bool has_in_backward(const Var& v) const { return v.kept_ || (selective && v.remake_); }
  void record(const char* op, UniqueFn<void(Ctx&)> backward);
  // Gradients by slot: put by the consumer of a value, taken by its producer. Exactly one each.
  void put(int slot, Buffer grad);
  Buffer take(int slot);
  // Unwinds the whole tape.
  void backward();
};

// Fan-out: two rights to one value; their gradients are added.
std::pair<Var, Var> fork(Ctx&, Var);

// Runs a block of the residual stream without recording and keeps only its input; backward runs it again, recording,
// then unwinds it.
using Block = UniqueFn<Var(Ctx&, Var)>;
Var checkpoint(Ctx&, Block block, Var in);

}  // namespace athanor
