// Ctx: everything a layer needs, passed explicitly, so that several models and ranks can share a process. Tape: the
// backward functions that forward records. Var: an activation that is consumed exactly once.
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

// Move-only: a value is consumed once, and fan-out is an explicit fork(). Ownership therefore replaces liveness
// analysis, and gradients are never accumulated implicitly.
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
  Buffer keep() const { return buffer_; }  // shares the memory, but not the right to consume the value
  void producer_keeps_it() { kept_ = true; }
  // Asks the consumer of this value to store the amax of its gradient in `of_gradient`, because the producer will
  // quantize the gradient; no tensor: the producer does not need it. The consumer may ignore the request: Buffer::amax
  // is set if the amax was stored.
  void asks_amax(Tensor of_gradient) { asked_ = of_gradient; }
  Tensor asked_amax() const { return asked_; }

 private:
  friend struct Ctx;
  friend std::pair<Var, Var> fork_columns(Ctx&, Var, int64_t);
  Buffer buffer_;
  int slot_ = -1;
  Remake remake_;
  bool kept_ = false;  // kept for the producer's backward
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
  std::map<int, Buffer> grads;    // gradients by slot
  std::map<int, int> uses;        // for each unit: uses in forward whose backward is pending
  bool puts_off_weights = false;  // Ctx::weight_half() postpones functions to weight_halves
  std::vector<UniqueFn<void(Ctx&)>> weight_halves;
  bool recording = true;
  int next_slot = 0;
};

// Traffic of activations and activation gradients between tensor-parallel (ProcessMesh::tensor()), context-parallel
// (context()) or expert-parallel ranks (experts()). `calls` counts all-reduces; `row_calls` counts all-gathers,
// reduce-scatters and all-to-alls of rows, whose bytes are those of the rows of all ranks.
struct TensorSums {
  struct Sent {
    int64_t calls = 0, bytes = 0;
    int64_t row_calls = 0, row_bytes = 0;
  };
  // Collectives that overlap the launches [from, to); `by_subject` counts them, too.
  struct Overlap {
    int64_t bytes;
    bool rows;
    int64_t from, to = 0;
    std::string subject = {};
  };
  std::map<std::string, Sent> by_subject = {};  // keys: CollectiveSubject::name()
  std::vector<Overlap> overlaps = {};
  const std::vector<Launch>* launches = nullptr;  // counted by a dry run: launches so far
  Sent all() const {
    Sent sum;
    for (const auto& [subject, s] : by_subject) {
      sum.calls += s.calls, sum.bytes += s.bytes;
      sum.row_calls += s.row_calls, sum.row_bytes += s.row_bytes;
    }
    return sum;
  }
};

// A collective of tensor-parallel or expert-parallel ranks that is still running.
struct TensorPass {
  std::unique_ptr<Event> ticket = nullptr;
  size_t number = 0;
};

// Hops of ring attention: in each, a rank sends one tensor to another context-parallel rank and gets one from a third,
// while it runs the work launched between begin_pass() and end_pass().
struct ContextPasses {
  struct Pass {
    int64_t bytes;         // max over ranks of the bytes sent
    int64_t from, to = 0;  // the launches [from, to) overlap the transfer
    std::string subject = {};
  };
  std::vector<Pass> all = {};
  const std::vector<Launch>* launches = nullptr;  // counted by a dry run: launches so far
  int64_t bytes() const {
    int64_t sum = 0;
    for (const Pass& pass : all) sum += pass.bytes;
    return sum;
  }
};

// An all_to_all that sends whole matrices to the ranks that update them. Ranks are numbered as in
// ProcessMesh::weights().
struct MatrixExchange {
  struct Part {
    int from, to;
    int64_t bytes;
  };
  std::vector<Part> parts = {};
  bool exposed = false;  // no GEMM overlaps the exchange
};

// Traffic of an optimizer update between ranks. `calls` and `bytes`: sums of squares of tensors, rows and columns over
// the ranks that shard the weights (ProcessMesh::shards()). `numbers_calls` and `numbers_bytes`: NorMuon's sums per
// output over all ranks that have parts of the weights. `exchanges`: whole matrices.
struct UpdateSums {
  int64_t calls = 0, bytes = 0;
  int64_t numbers_calls = 0, numbers_bytes = 0;
  std::vector<MatrixExchange> exchanges = {};
};

// Bytes of master weights and optimizer states in host memory that a step copies to the device and back.
struct StateTraffic {
  int64_t in = 0, out = 0;
};

// Bytes of units' weights and gradients in host memory that a micro-batch copies to the device and back.
struct UnitTraffic {
  struct Copied {
    int64_t bytes = 0;
    int64_t waited = 0;  // portion that compute waits for as soon as the copy starts
  };
  Copied forward = {}, backward = {};  // weights
  Copied gradients = {};               // gradients copied to the device; none in a step's first micro-batch
  int64_t gradients_out = 0;
};

// A hop of ring attention that is still running.
struct ContextPass {
  std::unique_ptr<Event> ticket = nullptr;
  size_t number = 0;
};

// Data about the step that MoE routers need, in training.
struct Routing {
  Tensor statistics = {};      // [L, E + 4] f64: RouterStatistics, one row per layer
  Tensor counts = {};          // [L, E] f64: tokens per expert in this step; only if they drive a router bias
  Tensor running_counts = {};  // [L, E] f64: ExpertLoads::running; only with the scope global_batch
  AuxLossScope aux_loss_scope = AuxLossScope::sequence;
  Tensor loss_scale = {};      // [1] f32
  float inv_count = 0;         // 1 / targets in the global batch
  int64_t sequence = 1;        // tokens of a sequence on this rank
  double capacity_factor = 0;  // see expert_capacity(); 0: no choice is dropped
  double buffer_factor = 0;    // see SendSlots::slots_per_rank(), with expert parallelism; 0: slots for any routing
  Tensor least_factors = {};   // [L] f64: SendSlots::least of each layer; used with buffer_factor, also in evaluations
  Tensor loss_sum = {};        // [1] f64: becomes infinite if choices overflow
  // [all rows] i32: ContextPart::rows_of_ranks(), if context-parallel ranks count choices of whole sequences, for a
  // balance loss or the capacity of experts.
  Tensor context_rows = {};
};

// Data about the micro-batch that dropout and stochastic depth need, in training; empty: nothing is dropped.
struct Dropping {
  Tensor state = {};  // StepState
  Tensor first = {};  // [1] i64: index of the micro-batch's first row among the rows of the step
  StochasticDepth depth = {};
  int64_t layers = 1;      // number of layers of the model
  float hidden = 0;        // probability with which elements of embeddings and residual branches are dropped
  SequenceRows rows = {};  // all rows of the micro-batch on this rank
};

struct Ctx {
  Ops& ops;
  Device& device;
  Arena& arena;
  ProcessMesh& mesh;
  const Recipe& recipe;
  Tape* tape = nullptr;                     // null: forward only
  bool selective = false;                   // recompute values that have a Remake instead of keeping them
  TensorSums* tensor_sums = nullptr;        // traffic of tensor-parallel ranks; dry runs only
  TensorSums* context_sums = nullptr;       // traffic of context-parallel ranks; dry runs only
  TensorSums* expert_sums = nullptr;        // traffic of expert-parallel ranks; dry runs only
  ContextPasses* context_passes = nullptr;  // hops of ring attention; dry runs only
  UpdateSums* update_sums = nullptr;        // traffic of updates; dry runs only
  StateTraffic* state_traffic = nullptr;    // host copies of optimizer states; dry runs only
  UnitTraffic* unit_traffic = nullptr;      // host copies of units; dry runs only
  bool sequence_parallel = false;           // see nn/rows.h
  int row_pieces = 1;                       // pieces in which rows are gathered and reduced: nn/rows.h
  bool overlaps_sums = false;               // see EngineOptions::overlaps_sums
  int64_t least_piece = 0;              // min elements of a piece of an output that is computed and reduced separately
  uint64_t seed = 0;                    // seed of stochastic rounding and dropout
  Tensor max_attention_logits = {};     // [L, H] f32: max attention logit of each head so far; empty: not tracked
  Quantization quantization = {};       // used by recipes with FP8 or FP4
  Routing routing = {};                 // used by mixtures of experts
  Dropping dropping = {};               // used by dropout of adapters and by stochastic depth
  BlockInputs* block_inputs = nullptr;  // null: inputs of recomputed blocks stay in device memory

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

  // Collectives, which a dry run skips.
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
  // Allocates the scratch buffer that Communicator::sum() and sum_scatter() of x need; empty if they need none.
  Buffer sum_workspace(const Communicator& group, const Tensor& x) {
    const int64_t elements = group.sum_workspace(x.dtype, x.numel());
    return elements > 0 ? alloc("gradients of other ranks", x.dtype, {elements}) : Buffer{};
  }

  // All-reduces x over the tensor-parallel ranks by sum or max.
  void tensor_sum(Tensor x, Reduce how = Reduce::sum) {
    Communicator& group = mesh.tensor();
    if (group.size() == 1) return;
    count_sum(x);
    all_reduce(group, x, how);
  }

  // tensor_gather() all-gathers rows over the tensor-parallel ranks, in rank order; its counterpart reduce-scatters
  // them.
  void tensor_gather(Tensor all, Tensor own) {
    count_rows(tensor_sums, all);
    all_gather(mesh.tensor(), all, own);
  }
  void tensor_scatter(Tensor own, Tensor all) {
    count_rows(tensor_sums, all);
    reduce_scatter(mesh.tensor(), own, all);
  }

  // Starts the same collectives, which then overlap the work launched before end_pass(). Until then nothing may write
  // to their tensors.
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
  void end_pass(TensorPass pass) { end_pass(tensor_sums, std::move(pass)); }

  // All-gather and reduce-scatter over the context-parallel ranks: nn/context.h.
  void context_gather(Tensor all, Tensor own) {
    count_rows(context_sums, all);
    all_gather(mesh.context(), all, own);
  }
  void context_scatter(Tensor own, Tensor all) {  // sums in f32, rounded once
    count_rows(context_sums, all);
    const Buffer workspace = sum_workspace(mesh.context(), all);
    if (!arena.recording())
      mesh.context().sum_scatter(own.view({own.numel()}), all.view({all.numel()}), workspace.t, Stream::compute);
  }

  // Runs call(stream) concurrently with the compute stream, after the work submitted so far. Its result may be used,
  // and its memory freed, only after wait().
  using Ticket = std::unique_ptr<Event>;
  template <class Call>
  Ticket overlap(Call&& call, Stream on = Stream::comm) {
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

  // Collectives over the expert-parallel ranks: expert_exchange() is an all-to-all of equal parts of `out`, received
  // into `in` in rank order; expert_gather() is an all-gather.
  void expert_exchange(Tensor in, Tensor out, Stream on = Stream::compute);
  // Starts expert_exchange(), which then overlaps the work launched before end_expert_exchange().
  TensorPass begin_expert_exchange(Tensor in, Tensor out);
  void end_expert_exchange(TensorPass pass) { end_pass(expert_sums, std::move(pass)); }
  void expert_gather(Tensor all, Tensor own) {
    count_rows(expert_sums, all);
    all_gather(mesh.experts(), all, own);
  }

  // Starts an all_to_all() over the context-parallel ranks, which overlaps the work launched before end_pass():
  // nn/ring.h. `most`: max over ranks of the bytes sent.
  ContextPass begin_pass(std::span<const Tensor> out, std::span<const Tensor> in, int64_t most) {
    if (!context_passes) return {overlap([&](Stream stream) { mesh.context().all_to_all(out, in, stream); })};
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
  // True if the value needs no extra memory in backward: its producer keeps it, or it is recomputed.
  bool has_in_backward(const Var& v) const { return v.kept_ || (selective && v.remake_); }
  void record(const char* op, UniqueFn<void(Ctx&)> backward);
  // Gradients by slot. The value's consumer puts exactly one gradient, and the producer takes it.
  void put(int slot, Buffer grad);
  Buffer take(int slot);
  // Runs the whole tape in reverse.
  void backward();
  // Runs the part of a layer's backward that computes only weight gradients: now, or later if the pipeline schedule has
  // separate actions for weight gradients. `half` must therefore own the data that it reads.
  void weight_half(UniqueFn<void(Ctx&)> half);
  // Returns a gradient that the caller may write to: the given one, or a copy if a postponed weight_half() still reads
  // it.
  Buffer own(Buffer grad);
  void run_weight_halves();  // runs postponed halves in order

 private:
  template <class Call>
  TensorPass begin_tensor_pass(const Tensor& x, bool rows, Call&& call) {
    return begin_pass(tensor_sums, x, rows, std::forward<Call>(call));
  }
  template <class Call>
  TensorPass begin_pass(TensorSums* sums, const Tensor& x, bool rows, Call&& call) {
    if (!sums) return {overlap(std::forward<Call>(call))};
    sums->overlaps.push_back({.bytes = int64_t(x.bytes()),
                              .rows = rows,
                              .from = int64_t(sums->launches->size()),
                              .subject = CollectiveSubject::name()});
    return {nullptr, sums->overlaps.size() - 1};
  }
  void end_pass(TensorSums* sums, TensorPass pass) {
    wait(std::move(pass.ticket));
    if (sums) sums->overlaps[pass.number].to = int64_t(sums->launches->size());
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

// Fan-out: returns two Vars of one value; their gradients are added.
std::pair<Var, Var> fork(Ctx&, Var);
Var add(Ctx&, Var a, Var b);  // a + b, of equal shapes
// Returns x [N, C] itself, and a copy of its first columns.
std::pair<Var, Var> fork_columns(Ctx&, Var x, int64_t columns);

// Activation checkpointing of one block: forward keeps only the block's input; backward runs the block's forward with
// recording, then its backward.
using Block = UniqueFn<Var(Ctx&, Var)>;
Var checkpoint(Ctx&, Block block, Var in);

}  // namespace athanor
