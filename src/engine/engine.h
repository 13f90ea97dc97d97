// Engine: one model with its optimizer on one device: plans all memory by dry runs of its own code, then runs
// micro-batches, optimizer steps and evaluations. Knows nothing of files, logs or clocks beyond a phase clock.
#pragma once
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "comm/network.h"
#include "engine/host_ring.h"
#include "engine/phase_runner.h"
#include "metrics/step_table.h"
#include "model/eight_bits.h"
#include "ops/decorate.h"
#include "ops/tuning.h"
#include "optim/optimizer.h"

namespace athanor {

constexpr size_t kLogitsBudget = size_t{256} << 20;

struct EngineOptions {
  Recipe recipe;
  HighLayers high_layers = {};  // of a recipe of 8 bits
  Recompute recompute;
  int64_t seq_length = 0;                // T
  int64_t micro_batch_size = 0;          // sequences at once
  int64_t global_batch_size = 0;         // sequences per optimizer step
  int64_t loss_chunk_rows = 0;           // rows of logits at once; 0: as many as gain speed within logits_budget
  size_t logits_budget = kLogitsBudget;  // bytes
  std::vector<Span> documents = {};      // what sees what in a micro-batch; none: every sequence is one document
  int64_t documents_per_sequence = 1;    // that set_documents() may give; rows of the table of documents
  std::vector<std::string> frozen = {};  // parameters that are not trained: parts of their names
  bool training = true;                  // false: weights and evaluation only
  bool graphs = true;                    // capture and replay, where the device can
  int zero_stage = 0;                    // what the ranks of the dp_shard axis share out: see Sharding
  int64_t logical_shards = 0;            // leaves of the rank-invariant sums: see LogicalShards; 0: none
  uint64_t seed = 0;
  OptimizerOptions optimizer;
  Schedule schedule;
  LossScaling scaling;
  double loss_scale = 1;  // initial
  double clip_grad = 0;
  SpikeRule spikes = {};  // deviations 0: no step is skipped for them
  double z_loss = 0;
};

// Device, ops and mesh of one rank; outlives the engine.
struct Backend {
  Device& device;
  Ops& ops;
  ProcessMesh& mesh;
  Tuning* tuning = nullptr;         // of backends that choose by trial
  Communicator* control = nullptr;  // all ranks, for decisions of the host in host memory; null: one rank
  Network network = {};             // what joins them
};

// A finished optimizer step. Times are those of the device, by phase; all of it from the end of the step before to the
// end of this one (without a step before, from the step's own start) is their total, idle time being Phase::other.
struct StepResult {
  StepState state;
  PhaseTimes times;
};

enum class CaptureOps : uint8_t { no, yes };

class Engine {
 public:
  Engine(const ModelConfig&, const EngineOptions&, Backend);

  const EngineOptions& options() const { return options_; }
  const std::string& eight_bits() const {
    return eight_bits_;
  }                            // which layers are in 8 bits; empty: the recipe has none
  const MemoryPlan& memory();  // records the dry runs on first use
  const Arena& arena() const { return arena_; }
  Model& model() { return *model_; }
  const Model& model() const { return *model_; }
  const Optimizer* optimizer() const { return optimizer_.get(); }  // null without training
  // Of this rank, per step of global_batch_size.
  int64_t micro_batches() const { return options_.global_batch_size / (options_.micro_batch_size * ranks()); }
  // Sequences of the next steps, global_batch_size at first and at most; none is accumulated then.
  void set_step_sequences(int64_t sequences);
  int64_t step_micro_batches() const { return step_micro_batches_; }  // of this rank, in these steps
  int ranks() const { return backend_.mesh.data_parallel().size(); }  // that share out a batch
  int rank() const { return backend_.mesh.data_parallel().rank(); }
  std::span<const Gemm> products() const { return products_; }  // of a micro-batch and an evaluation, once planned
  Tunable tunable() const { return {products_, attention_forward_, attention_backward_}; }    // of the same
  std::span<const Gemm> micro_products() const { return products().first(micro_products_); }  // of a micro-batch
  std::span<const Launch> micro_launches() const { return micro_launches_; }    // of a micro-batch, once planned
  std::span<const Launch> update_launches() const { return update_launches_; }  // of the end of a step
  // Sum of the rooflines of a step's ops: no step is faster. Known once memory() is.
  double least_step_seconds(const Ceilings&) const;

  void commit();          // the one allocation
  void init_weights();    // from the seed
  void refresh_values();  // compute copies of the weights, after masters were loaded

  // From now on: what sees what (as many rows as the table has) and the positions [micro_batch_size * T] of tokens;
  // none: those of the options.
  void set_documents(std::vector<Span> documents, std::vector<int32_t> positions);
  // tokens, targets: [micro_batch_size * T]; target -1 is ignored: the step's loss and gradients are means over the
  // others. The clock is moved through forward and backward.
  void micro_batch(std::span<const int32_t> tokens, std::span<const int32_t> targets, PhaseClock&);
  // Micro-batches that a rank holds in a row, of those that all ranks of a step hold together.
  int64_t turn() const { return options_.logical_shards > 0 ? step_micro_batches() : 1; }
  // Sums over the ranks, norm, skip decision, clipping, the optimizer. Only queued: a step's result is collected once,
  // in order, and at most kStepsAhead steps may wait for it; the host waits in collect() and nowhere else. The clock is
  // moved through communication and optimizer.
  void close_step(PhaseClock&);
  StepResult collect();
  int64_t uncollected() const { return int64_t(closed_.size()); }
  StepState finish_step();  // close_step() and the result of this very step
  static constexpr int64_t kStepsAhead = 2;
  // Forgets the micro-batches since the last step.
  void discard_step();
  // Makes the step that is being accumulated one without an update, on all ranks: for a rank that has no data for it,
  // while the others wait for its part.
  void spoil_step();
  // Sum of the token losses of one micro-batch of this rank; changes nothing. All ranks call it together.
  double evaluate(std::span<const int32_t> tokens, std::span<const int32_t> targets);
  std::vector<float> losses();  // of each token of the micro-batch that was evaluated last

  // For checkpoints: masters (state -1) and optimizer states of every unit, whole, one after the other; the tensor is
  // there until take() returns. All ranks call it together.
  using TakeTensor = std::function<void(size_t unit, int state, const Tensor& whole)>;
  void visit_whole(const TakeTensor&);
  // They are whole where they lie, and stay so.
  bool saves_in_place() const {
    const ParamStore& params = model_->params();
    return !params.sharded() && !params.split() && params.keeps_everything();
  }

  StepState read_state();
  void write_state(const StepState&);
  bool looks_for_spikes() const { return bool(window_); }
  SpikeWindow read_window();
  void write_window(const SpikeWindow&);
  // Logits [N, V] of a micro-batch's tokens, on the host; for comparisons. want_logits() comes before memory().
  void want_logits();
  std::vector<float> logits(std::span<const int32_t> tokens);

  // Replaces the ops that run (not the plan): decorators that check or trace. What was captured is forgotten, and
  // nothing is captured from then on but of ops that allow it: those that do the same launches and do not wait.
  void set_ops(Ops& ops, CaptureOps = CaptureOps::no);

 private:
  struct Mark {
    Phase phase;
    std::unique_ptr<Event> start;
  };
  struct ClosedStep {
    int64_t slot;
    std::vector<Mark> marks;
    std::unique_ptr<Event> end;
  };
  Ctx context(Ops& ops, Tape* tape);
  void record_phases();
  void run_micro_batch(Ctx, const PhaseRunner::Enter&, bool last);
  void mark(Phase phase) { marks_.push_back({phase, backend_.device.record(Lane::compute)}); }
  PhaseTimes device_times(const ClosedStep&) const;
  void run_evaluation(Ctx);
  void run_optimizer(Ctx, const PhaseRunner::Enter&);
  void run_end_of_leaf(Ctx, int64_t leaf);
  void add_norms(Ctx&);
  void run_logits(Ctx, std::vector<float>* out);
  void visit_whole(Ctx, const TakeTensor&);
  void load(std::span<const int32_t> tokens, std::span<const int32_t> targets, int64_t slot);
  Classifier head() const;
  Tensor scalar(size_t offset, DType dtype) const;

  EngineOptions options_;
  std::string eight_bits_;
  Backend backend_;
  Ops* ops_;
  Arena arena_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Optimizer> optimizer_;
  Batch batch_;
  Tensor losses_;     // [N] f32
  Tensor targets_;    // [1] f32: how many of the micro-batch's targets are not ignored
  Tensor state_;      // StepState
  Tensor window_;     // SpikeWindow, if spikes are looked for
  Tensor eval_sum_;   // [1] f64
  Tensor leaf_sums_;  // [leaves, 1 + units] f64: of each leaf its losses, and of each unit's part its squared gradients
  Tensor logit_rows_;  // [N] i32: 0, 1, 2, ...
  bool want_logits_ = false, recorded_ = false;
  PhaseRunner micro_batch_runner_, last_micro_batch_runner_, optimizer_runner_, evaluation_runner_;
  std::vector<Span> documents_;  // of the next micro-batches, when they are not those of before
  std::vector<int32_t> positions_;
  bool documents_changed_ = true;
  std::unique_ptr<HostRing> inputs_, states_;  // pinned: what load() copies by micro-batch, StepState by step
  int64_t step_micro_batches_ = 0;
  int64_t step_slot_ = 0, micro_slot_ = 0;  // of the step being accumulated, of its next micro-batch
  std::vector<Mark> marks_;                 // of the step being accumulated
  std::deque<ClosedStep> closed_;
  std::unique_ptr<Event> last_end_;  // of the step collected last, unless other work came after it
  std::vector<Launch> micro_launches_, update_launches_;
  std::vector<Gemm> products_;
  std::vector<AttentionFwd> attention_forward_;
  std::vector<AttentionBwd> attention_backward_;
  size_t micro_products_ = 0;  // first of products_
  MemoryPlan memory_;
};

}  // namespace athanor
