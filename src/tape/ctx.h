// Ctx: everything a layer needs, passed explicitly, so that several models and ranks can share a process. Tape: the
// backward functions that forward records. Var: an activation that can be consumed once.
#pragma once
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/unique_fn.h"
#include "comm/mesh.h"
#include "device/arena.h"
#include "ops/decorate.h"
#include "tape/quantization.h"
#include "tape/recipe.h"

namespace athanor {

struct Ctx;
class BlockInputs;

// Recomputes a value, bitwise identical, from values that are kept anyway (selective recomputation).
using Remake = std::shared_ptr<UniqueFn<Buffer(Ctx&)>>;

// Move-only: a value is consumed once, and fan-out is an explicit fork(). So ownership is the liveness analysis, and
// gradients are never accumulated implicitly.
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
  // Where the producer, who quantizes the gradient, wants its largest magnitude left; none: it does not ask. Who gives
  // the gradient need not heed it: Buffer::amax says whether it was left.
  void asks_largest(Tensor of_gradient) { asked_ = of_gradient; }
  Tensor asked_largest() const { return asked_; }

 private:
  friend struct Ctx;
  friend std::pair<Var, Var> fork_columns(Ctx&, Var, int64_t);
  Buffer buffer_;
  int slot_ = -1;
  Remake remake_;
  bool kept_ = false;  // for the backward of whoever made it
  Tensor asked_ = {};
};

// A value saved for backward: its buffer, or a function that recomputes it.
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
  std::map<int, Buffer> grads;    // by slot
  std::map<int, int> uses;        // by unit: in forward, with the backward still to come
  bool puts_off_weights = false;  // Ctx::weight_half() keeps functions in weight_halves
  std::vector<UniqueFn<void(Ctx&)>> weight_halves;
  bool recording = true;
  int next_slot = 0;
};

// What the ranks that share a layer's products (ProcessMesh::tensor()), or its sequences (context()), send of
// activations and their gradients: all-reduces; gathers and reduce-scatters of rows, whose bytes are those of all
// ranks' rows.
struct TensorSums {
  struct Sent {
    int64_t calls = 0, bytes = 0;
    int64_t row_calls = 0, row_bytes = 0;
  };
  // Of these, those that run beside launches [from, to).
  struct Beside {
    int64_t bytes;
    bool rows;
    int64_t from, to = 0;
    std::string subject = {};
  };
  std::map<std::string, Sent> by_subject = {};  // CollectiveSubject
  std::vector<Beside> beside = {};
  const std::vector<Launch>* launches = nullptr;  // so far, while a dry run counts them
  Sent all() const {
    Sent sum;
    for (const auto& [subject, s] : by_subject) {
      sum.calls += s.calls, sum.bytes += s.bytes;
      sum.row_calls += s.row_calls, sum.row_bytes += s.row_bytes;
    }
    return sum;
  }
};

// A sum or gather that is under way.
struct TensorPass {
  std::unique_ptr<Event> ticket = nullptr;
  size_t number = 0;
};

// In each, a rank sends one tensor to another rank that shares its sequences and gets one from a third, while it
// launches what lies between begin_pass() and end_pass().
struct ContextPasses {
  struct Pass {
    int64_t bytes;         // sent by the rank that sends most
    int64_t from, to = 0;  // numbers of launches: [from, to) run meanwhile
    std::string subject = {};
  };
  std::vector<Pass> all = {};
  const std::vector<Launch>* launches = nullptr;  // so far, while a dry run counts passes
  int64_t bytes() const {
    int64_t sum = 0;
    for (const Pass& pass : all) sum += pass.bytes;
    return sum;
  }
};

// What ranks send each other in one all_to_all so that whole matrices are where they are updated; ranks are numbers in
// ProcessMesh::weights().
struct MatrixExchange {
  struct Part {
    int from, to;
    int64_t bytes;
  };
  std::vector<Part> parts = {};
  bool exposed = false;  // no products are computed meanwhile
};

// What ranks send each other for an update. Those that share out the weights (ProcessMesh::shards()) add up squares of
// tensors, rows, columns; all that have parts of the weights exchange whole matrices, and add up NorMuon's numbers of
// outputs.
struct UpdateSums {
  int64_t calls = 0, bytes = 0;
  int64_t numbers_calls = 0, numbers_bytes = 0;
  std::vector<MatrixExchange> exchanges = {};
};

// Masters and optimizer states of a step that are in host memory: bytes that are copied to the device and back.
struct StateTraffic {
  int64_t in = 0, out = 0;
};

// Weights and gradients of units in host memory: bytes that a micro-batch copies to the device and back.
struct UnitTraffic {
  struct Copied {
    int64_t bytes = 0;
    int64_t waited = 0;  // of these: compute waits for them as soon as the copy starts
  };
  Copied forward = {}, backward = {};  // of weights
  Copied gradients = {};               // to the device; not in a step's first micro-batch
  int64_t gradients_out = 0;
};

// A pass that is under way.
struct ContextPass {
  std::unique_ptr<Event> ticket = nullptr;
  size_t number = 0;
};

// What the routers of a mixture of experts need to know of the step, in training.
struct Routing {
  Tensor statistics = {};  // [L, E + 3] f64: RouterStatistics of each layer
  Tensor counts = {};      // [L, E] f64: tokens of each expert in this step; of a model whose bias follows them
  Tensor loss_scale = {};  // [1] f32
  float inv_count = 0;     // 1 / targets in the global batch
  int64_t sequence = 1;    // tokens of a sequence on this rank
  // [all rows] i32, ContextPart::rows_of_ranks(): where context-parallel ranks balance whole sequences together; else
  // none
  Tensor context_rows = {};
};

// What dropout and stochastic depth need to know of the micro-batch, in training; none: nothing is dropped.
struct Dropping {
  Tensor state = {};  // StepState
  Tensor first = {};  // [1] i64: number of the first row among those of the step
  StochasticDepth depth = {};
  int64_t layers = 1;      // of the model
  float hidden = 0;        // probability with which elements of embeddings and residual branches are dropped
  SequenceRows rows = {};  // of all rows of the micro-batch on this rank
};

struct Ctx {
  Ops& ops;
  Device& device;
  Arena& arena;
  ProcessMesh& mesh;
  const Recipe& recipe;
  Tape* tape = nullptr;                     // null: forward only
  bool selective = false;                   // recompute values that have a Remake instead of keeping them
  TensorSums* tensor_sums = nullptr;        // where a dry run counts them
  TensorSums* context_sums = nullptr;       // likewise
  TensorSums* expert_sums = nullptr;        // likewise
  ContextPasses* context_passes = nullptr;  // likewise
  UpdateSums* update_sums = nullptr;        // likewise
  StateTraffic* state_traffic = nullptr;    // likewise
  UnitTraffic* unit_traffic = nullptr;      // likewise
  bool sequence_parallel = false;           // see nn/rows.h
  int row_pieces = 1;                       // likewise
  bool sums_beside = false;                 // ranks that share products send sums beside other products
  int64_t least_piece = 0;                  // numbers of a piece of an output to be computed and summed apart
  uint64_t seed = 0;                        // of rounding at random
  Tensor max_attention_logits = {};         // [L, H] f32: largest attention score of each head so far; none: not wanted
  Quantization quantization = {};           // of a recipe of 8 or 4 bits
  Routing routing = {};                     // of a mixture of experts
  Dropping dropping = {};                   // of adapters
  BlockInputs* block_inputs = nullptr;      // null: inputs of recomputed blocks stay in device memory

  Buffer alloc(std::string_view name, DType dtype, Shape shape) { return arena.alloc(name, dtype, shape); }
  Buffer alloc(std::string_view name, Shape shape) { return arena.alloc(name, recipe.compute, shape); }

  // Checks the op, attaches its scratch memory and launches it.
  template <class Op>
  void run(const Op& op) {
    op.check();
    const size_t bytes = ops.scratch(op);
    Buffer scratch = bytes ? arena.alloc("scratch", DType::u8, {int64_t(bytes)}) : Buffer{};
    ops.run(op, scratch.t.data);
  }

  // Collectives; skipped in a dry run.
  void all_reduce(Communicator& group, Tensor x, Reduce how = Reduce::sum) {
    if (!arena.recording()) group.all_reduce(x, how, Stream::compute);
  }
  void all_gather(Communicator& group, Tensor full, Tensor shard) {
    if (!arena.recording()) group.all_gather(full, shard, Stream::compute);
  }
  void reduce_scatter(Communicator& group, Tensor shard, Tensor full) {
    if (!arena.recording()) group.reduce_scatter(shard, full, Reduce::sum, Stream::compute);
  }
  void exchange(Communicator& group, Tensor out, Tensor in, int peer) {
    if (!arena.recording()) group.exchange(out, in, peer, Stream::compute);
  }
  // That Communicator::sum() and sum_scatter() of x overwrite; empty where they need none.
  Buffer room_of_sum(const Communicator& group, const Tensor& x) {
    const int64_t elements = group.room_of_sum(x.dtype, x.numel());
    return elements > 0 ? alloc("gradients of other ranks", x.dtype, {elements}) : Buffer{};
  }

  // Adds up what each rank that shares a layer's products has of x, or takes the largest.
  void tensor_sum(Tensor x, Reduce how = Reduce::sum) {
    Communicator& group = mesh.tensor();
    if (group.size() == 1) return;
    count_sum(x);
    all_reduce(group, x, how);
  }

  // The rows of all these ranks, in their order; and sums over them of rows of all, of which each rank gets its own.
  void tensor_gather(Tensor all, Tensor own) {
    count_rows(tensor_sums, all);
    all_gather(mesh.tensor(), all, own);
  }
  void tensor_scatter(Tensor own, Tensor all) {
    count_rows(tensor_sums, all);
    reduce_scatter(mesh.tensor(), own, all);
  }

  // The same beside what is launched until end_pass(). Nobody writes what is sent meanwhile.
  TensorPass begin_tensor_sum(Tensor x) {
    count_sum(x);
    return begin_tensor_pass(x, false, [&](Stream stream) { mesh.tensor().all_reduce(x, Reduce::sum, stream); });
  }
  TensorPass begin_tensor_gather(Tensor all, Tensor own) {
    count_rows(tensor_sums, all);
    return begin_tensor_pass(all, true, [&](Stream stream) { mesh.tensor().all_gather(all, own, stream); });
  }
  TensorPass begin_tensor_scatter(Tensor own, Tensor all) {
    count_rows(tensor_sums, all);
    return begin_tensor_pass(all, true,
                             [&](Stream stream) { mesh.tensor().reduce_scatter(own, all, Reduce::sum, stream); });
  }
  void end_pass(TensorPass pass) {
    wait(std::move(pass.ticket));
    if (tensor_sums) tensor_sums->beside[pass.number].to = int64_t(tensor_sums->launches->size());
  }

  // The same among the ranks that share sequences: nn/context.h.
  void context_gather(Tensor all, Tensor own) {
    count_rows(context_sums, all);
    all_gather(mesh.context(), all, own);
  }
  void context_scatter(Tensor own, Tensor all) {  // in f32, rounded once
    count_rows(context_sums, all);
    const Buffer room = room_of_sum(mesh.context(), all);
    if (!arena.recording())
      mesh.context().sum_scatter(own.view({own.numel()}), all.view({all.numel()}), room.t, Stream::compute);
  }

  // Runs call(on) in that stream concurrently with the compute stream, after the work submitted so far. Use its result,
  // or free its memory, only after wait().
  using Ticket = std::unique_ptr<Event>;
  template <class Call>
  Ticket beside(Call&& call, Stream on = Stream::comm) {
    if (arena.recording()) return nullptr;
    device.wait(on, *device.record(Stream::compute));
    call(on);
    return device.record(on);
  }
  void wait(Ticket ticket) {
    if (ticket) device.wait(Stream::compute, *ticket);
  }

  void all_to_all(Communicator& group, std::span<const Tensor> out, std::span<const Tensor> in) {
    if (!arena.recording()) group.all_to_all(out, in, Stream::compute);
  }

  // Among the ranks that have other experts: equal parts of `out` go to each of them, theirs come into `in` in rank
  // order; and what all of them have.
  void expert_exchange(Tensor in, Tensor out);
  void expert_gather(Tensor all, Tensor own) {
    count_rows(expert_sums, all);
    all_gather(mesh.experts(), all, own);
  }

  // Tensors to and from ranks that share sequences, as all_to_all() has them, beside what is launched until end_pass():
  // nn/ring.h. `most`: bytes that the rank with most to send sends.
  ContextPass begin_pass(std::span<const Tensor> out, std::span<const Tensor> in, int64_t most) {
    if (!context_passes) return {beside([&](Stream stream) { mesh.context().all_to_all(out, in, stream); })};
    context_passes->all.push_back(
        {.bytes = most, .from = int64_t(context_passes->launches->size()), .subject = CollectiveSubject::name()});
    return {nullptr, context_passes->all.size() - 1};
  }
  void end_pass(ContextPass pass) {
    wait(std::move(pass.ticket));
    if (context_passes) context_passes->all[pass.number].to = int64_t(context_passes->launches->size());
  }

  bool recording() const { return tape && tape->recording; }
  Var var(Buffer buffer, Remake remake = nullptr);
  Saved save(const Var& v) const;
  // Backward has the value without any cost in memory: its producer keeps it, or it is made again.
  bool has_in_backward(const Var& v) const { return v.kept_ || (selective && v.remake_); }
  void record(const char* op, UniqueFn<void(Ctx&)> backward);
  // Gradients by slot: put by the value's consumer, taken by its producer, exactly one each.
  void put(int slot, Buffer grad);
  Buffer take(int slot);
  // Runs the whole tape in reverse.
  void backward();
  // Runs a part of a layer's backward that computes gradients of weights alone: now, or where the schedule has it as an
  // action of its own, then. So it owns what it reads.
  void weight_half(UniqueFn<void(Ctx&)> half);
  // A gradient that the caller may write to: the given one, or a copy where a weight_half() that was put off reads it.
  Buffer own(Buffer grad);
  void run_weight_halves();  // in the order in which they were put off

 private:
  template <class Call>
  TensorPass begin_tensor_pass(const Tensor& x, bool rows, Call&& call) {
    if (!tensor_sums) return {beside(std::forward<Call>(call))};
    tensor_sums->beside.push_back({.bytes = int64_t(x.bytes()),
                                   .rows = rows,
                                   .from = int64_t(tensor_sums->launches->size()),
                                   .subject = CollectiveSubject::name()});
    return {nullptr, tensor_sums->beside.size() - 1};
  }
  void count_sum(const Tensor& x) {
    if (!tensor_sums) return;
    TensorSums::Sent& sent = tensor_sums->by_subject[CollectiveSubject::name()];
    ++sent.calls, sent.bytes += int64_t(x.bytes());
  }
  static void count_rows(TensorSums* sums, const Tensor& all) {
    if (!sums) return;
    TensorSums::Sent& sent = sums->by_subject[CollectiveSubject::name()];
    ++sent.row_calls, sent.row_bytes += int64_t(all.bytes());
  }
};

// Fan-out: two Vars for one value; their gradients are added.
std::pair<Var, Var> fork(Ctx&, Var);
// x [N, C] itself, and a copy of its first columns.
std::pair<Var, Var> fork_columns(Ctx&, Var x, int64_t columns);

// Activation checkpointing of a block of the residual stream: forward keeps only its input; backward runs it again with
// recording, then its backward.
using Block = UniqueFn<Var(Ctx&, Var)>;
Var checkpoint(Ctx&, Block block, Var in);

}  // namespace athanor
