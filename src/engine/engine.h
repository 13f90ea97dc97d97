// Engine: one model and its optimizer on one device. Plans all memory by dry runs of its own code, then runs
// micro-batches, optimizer steps and evaluations. Uses no files and no logs; PhaseClock is its only clock.
#pragma once
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <tuple>

#include "base/micro_batch_order.h"
#include "comm/network.h"
#include "engine/averaged_weights.h"
#include "engine/block_gather.h"
#include "engine/host_ring.h"
#include "engine/phase_runner.h"
#include "engine/pruned_weights.h"
#include "engine/quantized_state.h"
#include "engine/sparse_weights.h"
#include "engine/stage.h"
#include "engine/stage_links.h"
#include "engine/step_requests.h"
#include "engine/step_table.h"
#include "model/adapters.h"
#include "model/low_precision.h"
#include "nn/context.h"
#include "nn/ring.h"
#include "ops/decorate.h"
#include "ops/tuning.h"
#include "optim/optimizer.h"
#include "optim/outer_optimizer.h"
#include "tape/block_inputs.h"

namespace athanor {

constexpr size_t kLogitsBudget = size_t{256} << 20;

// Smallest GEMM worth splitting: two 128 x 256 tiles per SM of an H200. Less would leave some SMs idle.
constexpr int64_t kLeastPiece = int64_t{2} * 132 * 128 * 256;

// Teacher of a distillation: the model is trained on its output distribution.
struct TeacherOptions {
  ModelConfig model = {};
  int64_t top_k = 0;  // cached logits per position, given by set_teacher_logits(); 0: the teacher itself is run
  DistillLoss loss = DistillLoss::kl;
  double temperature = 1, ce_weight = 1;
};

struct EngineOptions {
  Recipe recipe;
  HighLayers high_layers = {};  // layers that FP8 and FP4 recipes leave in bf16
  Recompute recompute;
  int64_t seq_length = 0;                // T
  int64_t micro_batch_size = 0;          // sequences per micro-batch
  int64_t global_batch_size = 0;         // sequences per optimizer step
  int64_t loss_chunk_rows = 0;           // rows of logits per chunk; 0: chosen within logits_budget
  size_t logits_budget = kLogitsBudget;  // bytes
  std::vector<Span> documents = {};      // attention spans of a micro-batch; empty: each sequence is one document
  int64_t documents_per_sequence = 1;    // max for set_documents(); sizes the document table
  std::vector<std::string> frozen = {};  // substrings of names of parameters that are not trained
  LoraOptions lora = {};                 // adapters of a frozen model; rank 0: none
  InferenceWeights weights = {};         // how linear layers are stored without training
  bool training = true;                  // false: weights and evaluation only
  bool graphs = true;                    // capture and replay CUDA graphs if the device can
  int zero_stage = 0;                    // ZeRO stage: see Sharding
  PackedTraffic packed = {};             // which collectives send 4-bit or 8-bit values
  StatesHome states_home = {};           // memory of master weights and optimizer states
  bool offload_inputs = false;           // keep inputs of recomputed blocks in host memory between forward and backward
  int64_t host_units = 0;                // units whose weights and gradients are in host memory: see Sharding
  PipelineOptions pipeline = {};         // pipeline over ProcessMesh::stages()
  bool sequence_parallel = false;        // tensor-parallel ranks shard the rows of the residual stream: nn/rows.h
  // overlaps_sums: tensor-parallel collectives overlap GEMMs, and expert-parallel exchanges overlap shared experts.
  // Default: true if the device has several streams.
  // least_piece: a tensor-parallel output is computed in pieces if half of it (with sequence_parallel a quarter) has at
  // least this many elements. Each piece starts as soon as its rows have arrived, and is reduced separately. Default:
  // kLeastPiece if the device has several streams, else no pieces.
  std::optional<bool> overlaps_sums = {};
  std::optional<int64_t> least_piece = {};
  ContextMethod context_method = ContextMethod::gather;  // must not be `automatic` with context-parallel ranks
  int64_t logical_shards = 0;  // leaves of rank-invariant sums: see LogicalShards; 0: sums are not rank-invariant
  uint64_t seed = 0;
  int64_t save_block_bytes = BlockGather::kBytes;
  OptimizerOptions optimizer;
  bool eval_averages = false;  // use_averages() will be called; needs optimizer.ema_decay or tail_average_start
  OuterOptions outer = {};     // local updates by ProcessMesh::workers(): see end_rounds()
  Schedule schedule;
  LossScaling scaling;
  double loss_scale = 1;  // initial
  double clip_grad = 0;
  SpikeRule spikes = {};  // deviations 0: spikes are not skipped
  double z_loss = 0;
  StochasticDepth depth = {};
  float hidden_dropout = 0;        // see Dropping::hidden
  float router_bias_rate = 1e-3f;  // step size of StepRouterBias, for routers with a bias
  AuxLossScope aux_loss_scope = AuxLossScope::sequence;
  double expert_capacity_factor = 0;  // see expert_capacity(); 0: no choice is dropped
  double expert_buffer_factor = 0;    // see SendSlots::slots_per_rank(); 0: enough slots for any routing
  std::optional<TeacherOptions> teacher = {};
  // Multi-token prediction: initial weights of the losses of the tokens after the next one.
  std::vector<float> ahead_weights = {};
  std::optional<PruningOptions> pruning = {};
  bool quantized = false;      // count statistics of FP8 and FP4 quantization: take_quantized()
  bool keep_quantized = true;  // keep quantized weights for the step; false: quantize 16-bit weights at each use
  int64_t sources = 0;         // sources whose losses are summed separately, see set_sources(); below 2: none
  bool noise_scale = false;    // compute StepState::micro_norm, the gradient norm of a step's first micro-batch
};

// Device, ops and mesh of one rank; outlives the engine.
struct Backend {
  Device& device;
  Ops& ops;
  ProcessMesh& mesh;
  Tuning* tuning = nullptr;         // for backends that autotune algorithms
  Communicator* control = nullptr;  // all ranks, over host memory, for decisions on the host; null: one rank
  Network network = {};             // bandwidth between the ranks
};

// A finished optimizer step. Times are device times by phase. The total runs from the end of the previous step (or the
// step's own start, if there is none) to the end of this one; idle time is Phase::other.
struct StepResult {
  StepState state;
  PhaseTimes times;
  RequestBits requests = 0;  // requests of any rank, as passed to its close_step(): the same on all ranks
  // SourceLosses::sums over all ranks, [2, sources]; empty unless EngineOptions::sources.
  std::vector<double> source_sums = {};
};

// The gradients whose norm is StepState::micro_norm.
struct MicroGradients {
  int64_t sequences;  // sequences behind each gradient
  int64_t count;      // number of gradients whose squares were added
};

// Quantization of one operand of a linear layer's GEMMs, counted over micro-batches.
struct QuantizedOperand {
  Param parameter;  // the layer's weight
  Operand operand;
  QuantizeStatistics statistics;
};

enum class CaptureOps : uint8_t { no, yes };

class Engine {
 public:
  Engine(const ModelConfig&, const EngineOptions&, Backend);

  const EngineOptions& options() const { return options_; }
  // Text that says which layers are quantized; empty: the recipe quantizes none.
  const std::string& low_precision() const { return low_precision_; }
  const MemoryPlan& memory();  // runs the dry runs on first use
  // Lower bound of memory().total(): planned tensors plus the peak of one micro-batch. Much faster than memory(), since
  // it dry-runs only a micro-batch and chooses no offsets.
  size_t least_memory();
  size_t host_memory() const { return memory_.total(Mem::pinned); }  // bytes of offloaded tensors
  // Bytes of block inputs that a micro-batch offloads to the host and copies back; 0: they are not offloaded.
  size_t offloaded_inputs() const;
  const Arena& arena() const { return arena_; }
  Model& model() { return *model_; }
  const Model& model() const { return *model_; }
  // Null if this rank runs no teacher. The teacher's weights are loaded after commit().
  Model* teacher() { return teacher_.get(); }
  bool distills() const { return options_.training && options_.teacher; }
  bool runs_teacher() const { return distills() && options_.teacher->top_k == 0; }  // true on the last stage
  const Optimizer* optimizer() const { return optimizer_.get(); }                   // null without training
  // Number of this rank's micro-batches in a step of global_batch_size, the batch of one worker.
  int64_t micro_batches() const { return options_.global_batch_size / (options_.micro_batch_size * ranks()); }
  // Sets the sequences per step from now on: at most global_batch_size, which is the initial value. Must not be called
  // while a step is accumulating.
  void set_step_sequences(int64_t sequences);
  // Number of this rank's micro-batches in a step of set_step_sequences().
  int64_t step_micro_batches() const { return step_micro_batches_; }
  MicroGradients micro_gradients() const;
  // Number of ranks, or groups of ranks, that have different sequences of a batch.
  int ranks() const { return backend_.mesh.batches(); }
  int rank() const {
    const ProcessMesh& mesh = backend_.mesh;
    return (mesh.workers().rank() * mesh.data_parallel().size() + mesh.data_parallel().rank()) / int(part_.ranks);
  }
  int devices() const { return backend_.mesh.world().size(); }
  size_t stage_message_bytes() const { return links_.message_bytes(); }  // of a message between stages; 0: one stage
  // True on one of the ranks that compute the same losses from the same samples. It is on the stage with the head, the
  // only one that has losses.
  bool reports_losses() const { return stage_.has_head() && backend_.mesh.tensor().rank() == 0 && part_.rank == 0; }
  const Stage& stage() const { return stage_; }
  // Available once planned. gemms(): GEMMs of a micro-batch and an evaluation. tunable(): all ops of these two that can
  // be autotuned.
  std::span<const Gemm> gemms() const { return plan_.gemms; }
  Tunable tunable() const {
    return {plan_.gemms, plan_.attention_forward, plan_.attention_backward, plan_.of_quantized};
  }
  std::span<const Gemm> micro_gemms() const { return gemms().first(micro_gemms_); }  // GEMMs of a micro-batch
  std::span<const ScaledGemm> micro_gemms_of_quantized() const {
    return std::span(plan_.of_quantized).first(micro_of_quantized_);
  }
  std::span<const GroupedGemm> micro_grouped_gemms() const { return std::span(plan_.grouped).first(micro_grouped_); }
  // Launches and traffic recorded by the dry runs, available once planned: of a micro-batch (unit_traffic() and
  // micro_*), and of the end of a step (update_*() and state_traffic()).
  std::span<const Launch> micro_launches() const { return micro_launches_; }
  const TensorSums& micro_tensor_sums() const { return micro_tensor_sums_; }
  const UpdateSums& update_sums() const { return update_sums_; }
  const StateTraffic& state_traffic() const { return state_traffic_; }
  const UnitTraffic& unit_traffic() const { return unit_traffic_; }
  const TensorSums& micro_context_sums() const { return micro_context_sums_; }
  const TensorSums& micro_expert_sums() const { return micro_expert_sums_; }
  const ContextPasses& micro_context_passes() const { return micro_context_passes_; }
  std::span<const Launch> update_launches() const { return update_launches_; }

  void commit();  // allocates all planned memory
  // Initializes the weights of all parameters, or of all except frozen ones, from the seed. Starts rounds of local
  // updates.
  void init_weights(ParamStore::Init = ParamStore::Init::all);
  void refresh_values();  // recomputes compute copies of the weights; call after loading master weights

  // Sets spans (as many as the document table has rows) and positions [micro_batch_size * T] of the following
  // micro-batches; empty: those of the options.
  void set_documents(std::vector<Span> documents, std::vector<int32_t> positions);
  // Sets the source of each sequence [micro_batch_size] of the following micro-batches; initially 0. No effect unless
  // EngineOptions::sources.
  void set_sources(std::span<const int32_t> sources);
  // Images of the next micro-batch [micro_batch_size, pixels of an image], for models that read images; valid until
  // micro_batch() or evaluate() returns.
  void set_pixels(std::span<const uint8_t> pixels) { next_pixels_ = pixels; }
  // Teacher logits for the next micro-batch, if TeacherOptions::top_k > 0. ids, values: [micro_batch_size * T, k],
  // rest: [micro_batch_size * T]; valid until micro_batch() returns.
  struct TopLogitRows {
    std::span<const int32_t> ids;
    std::span<const float> values, rest;
  };
  void set_teacher_logits(const TopLogitRows& rows) { next_teacher_ = rows; }
  // tokens, targets: [micro_batch_size * T]; all ranks of a context-parallel group get the same ones and select their
  // rows. Targets of -1 are ignored; the step's loss and gradients are means over the other targets. Switches the clock
  // to forward, then backward.
  void micro_batch(std::span<const int32_t> tokens, std::span<const int32_t> targets, PhaseClock&);
  // This rank's micro-batches in steps of set_step_sequences().
  MicroBatchOrder micro_batch_order() const {
    return {.rank = rank(),
            .world = ranks(),
            .chunk = options_.logical_shards > 0 ? step_micro_batches() : 1,
            .workers = backend_.mesh.workers().size(),
            .per_step = step_micro_batches()};
  }
  // Queues the end of a step: reductions over ranks, gradient norm, skip decision, clipping and the optimizer. Each
  // result must be collected once, in order; at most kStepsAhead steps may be uncollected. The host blocks only in
  // collect(). Switches the clock to communication, then optimizer. requests: this rank's requests;
  // StepResult::requests has those of all ranks.
  void close_step(PhaseClock&, RequestBits requests = 0);
  StepResult collect();
  int64_t uncollected() const { return int64_t(closed_.size()); }
  StepState finish_step();  // close_step(), then returns this step's result
  static constexpr int64_t kStepsAhead = 2;
  // Initializes the states that start as copies of the weights: with PackedTraffic::weights the weights as they were
  // sent; with local updates the global weights, since this worker's weights are still equal to those of all workers.
  void start_states();
  // Local updates. Without them, workers() is 0 and the other functions do nothing.
  bool overlaps_rounds() const;  // true if delayed deltas are sent while steps run
  int64_t workers() const { return outer_ || compresses() ? backend_.mesh.workers().size() : 0; }
  // Call after step number `step` of the run, counted from 1, when no step is uncollected. Ends the rounds that end at
  // this step and runs the outer steps that are due; round_ends() returns whether any are due. `all`: runs the outer
  // steps of all fragments; for fragments with deltas in flight it is the last one.
  bool round_ends(int64_t step) const;
  void end_rounds(int64_t step, bool all = false);
  // Fragments whose outer step is pending. Call receive_deltas() before states are saved or loaded, to complete them.
  // Call set_in_flight() after loading; it returns false if there are no such fragments.
  std::vector<int64_t> in_flight() const { return outer_ ? outer_->in_flight() : std::vector<int64_t>{}; }
  void receive_deltas();
  bool set_in_flight(const std::vector<int64_t>& fragments);
  // Sets whether workers send each other compressed momentum instead of gradients, from the next close_step() on. Has
  // no effect unless the optimizer compresses.
  void set_compressed(bool compressed) { compressed_ = compressed && optimizer_->compresses(); }
  // Discards the micro-batches accumulated since the last step.
  void discard_step();
  // Makes all ranks skip the update of the accumulating step. For a rank that has no data for the step while the other
  // ranks wait in collectives.
  void poison_step();
  // Returns the sum of the token losses of one micro-batch, over this rank and the ranks that share its sequences;
  // changes no state. All ranks call it together. 0 on all stages except the last.
  double evaluate(std::span<const int32_t> tokens, std::span<const int32_t> targets);
  // use_averages() makes evaluations read the averages of the weights; use_weights() switches back to the weights. No
  // step and no checkpoint may happen in between. Before the first update there are no averages, so evaluations read
  // the weights. Averages of schedule_free_adamw exist without EngineOptions::eval_averages.
  bool has_averages() const { return averages_.has_value(); }
  void use_averages();
  void use_weights();
  std::vector<float> losses();  // loss per token of the last evaluated micro-batch, on the last stage
  // Class with the largest logit for each image of that micro-batch, on the last stage; empty for language models.
  std::vector<int32_t> predicted_classes();

  // Zeroes the smallest-magnitude weights of the pruned matrices, so that a fraction `sparsity` of them is zero; they
  // stay zero until the next call. Call between steps, on all ranks together. Needs EngineOptions::pruning by
  // magnitude.
  void prune(double sparsity);
  // Zeroes the weights pruned by the last prune() or by a checkpoint's masks; call after loading other weights.
  void zero_pruned();
  std::vector<PrunedMatrix> pruned_matrices();  // all ranks call it together; empty without pruning

  // Gathers master weights and optimizer states for checkpoints. All ranks create and use it together; while it exists,
  // nothing else may run.
  std::unique_ptr<BlockGather> gather_blocks();

  StepState read_state();
  void write_state(const StepState&);
  bool looks_for_spikes() const { return bool(window_); }
  // State of FP8 and FP4 quantization; null if the recipe does not quantize.
  const QuantizedState* quantized() const { return quantized_ ? &*quantized_ : nullptr; }
  // With QK-clip: bytes of max attention logits that ranks max-reduce once per step.
  size_t score_bytes() const { return max_attention_logits_ ? max_attention_logits_.bytes() : 0; }
  // With router biases: bytes of tokens per expert that ranks sum once per step.
  size_t expert_count_bytes() const { return expert_counts_ ? expert_counts_.bytes() : 0; }
  // Quantization statistics of all ranks' micro-batches since the last call, if options().quantized. Weights, which are
  // equal on all ranks, count once. All ranks call it together.
  std::vector<QuantizedOperand> take_quantized();
  // RouterStatistics of each layer with experts, concatenated, summed over the micro-batches of all ranks since the
  // last call; empty if no layer has experts. All ranks call it together.
  std::vector<double> take_routing();
  // For each layer, the smallest expert_buffer_factor with which no choice of any rank would have overflowed; 0: no
  // choice overflowed. After an overflow no step is taken. All ranks call it together.
  std::vector<double> least_buffer_factors();
  // Forgets overflows, so that steps are taken again. Call when no step is uncollected.
  void discard_overflows();
  SpikeWindow read_window();
  void write_window(const SpikeWindow&);
  // Logits [N, V] of a micro-batch's tokens on the host, for comparisons. Call want_logits() before memory().
  void want_logits();
  std::vector<float> logits(std::span<const int32_t> tokens);
  // The k largest logits at each position of a micro-batch, among the first `vocab` tokens (TopLogits). Call
  // want_top_logits() before memory().
  struct TopLogitsOfBatch {
    std::vector<int32_t> ids;         // [N, k]
    std::vector<float> values, rest;  // [N, k], [N]
  };
  void want_top_logits(int64_t k, int64_t vocab, float temperature);
  TopLogitsOfBatch top_logits(std::span<const int32_t> tokens);

  // Changes the window of layers with sliding-window attention. Drops captured graphs; the memory plan does not depend
  // on the window.
  void set_sliding_window(int64_t tokens);
  // Sets the loss weights of the tokens further ahead, from the next micro-batch on; as many as
  // EngineOptions::ahead_weights.
  void set_ahead_weights(std::vector<float> weights);

  // Replaces the ops that run (not those of the plan) by decorators that check or trace. Drops captured graphs; later
  // runs are captured only with CaptureOps::yes, for decorators that make the same launches and do not block.
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
  template <class Record>
  Record read(const Tensor& from);
  template <class Record>
  void write(const Tensor& to, const Record&);
  void require_tensor_parallel() const;
  void require_context_parallel() const;
  void require_expert_parallel() const;
  void require_pipeline() const;
  void require_host_units() const;
  void plan_teacher();
  void plan_inputs();
  Ctx context(Ops& ops, Tape* tape);
  int row_pieces(int64_t least_piece) const;
  void record_micro_batch();
  void record_optimizer();
  void record_other_phases();
  // Inputs and results of a micro-batch in progress.
  struct MicroInputs {
    Batch batch;
    Tensor losses;         // [N] f32
    Tensor divergences;    // [N] f32: losses against the teacher, if there is one
    TeacherLogits top;     // the teacher's logits, if they are given
    Tensor all_losses;     // [all rows] f32: losses of all context-parallel ranks, in rank order
    Tensor targets;        // [1] f32: number of targets of the micro-batch that are not ignored
    Tensor sources;        // [micro_batch_size] i32: source of each sequence; absent without EngineOptions::sources
    Tensor ahead_weights;  // [m] f32: weights of the losses of Batch::ahead
    Tensor first_row;      // [1] i64: see Dropping::first; empty without dropout and stochastic depth
    bool documents_changed = true;
  };
  void plan_inputs(MicroInputs&, size_t slot);
  int64_t source_count() const { return options_.training && options_.sources > 1 ? options_.sources : 0; }
  // True if routers count choices of whole sequences, for a balance loss or the capacity of experts, while
  // context-parallel ranks have parts of sequences.
  bool routes_sequences() const {
    return options_.training && part_.ranks > 1 && model_->config().num_experts > 0 &&
           ((balances() && options_.aux_loss_scope != AuxLossScope::global_batch) ||
            options_.expert_capacity_factor > 0);
  }
  bool balances() const { return options_.training && model_->config().router_aux_loss_coef > 0; }
  // State that one action of a pipeline program passes to the next, for one chunk and micro-batch.
  struct MicroFrame {
    Tape tape;
    Buffer in, out;            // activations that are received and sent
    Buffer in_grad, out_grad;  // gradients that are received and sent
    int in_slot = -1, out_slot = -1;
    bool open = false, entered = false;  // state of this frame's phase in the arena
  };
  // Tensors that a frame's transfers read and write; their addresses are the same in every step.
  struct FrameTensors {
    Tensor in, out, in_grad, out_grad;
  };
  // Passes to run for one chunk and micro-batch: forward, backward or both, or one half of backward.
  struct Passes {
    int chunk;
    MicroFrame& frame;
    const MicroInputs& inputs;
    bool forward;
    std::optional<StageAction::Kind> backward;
    BlockInputs* block_inputs;
    bool first;  // true for the first micro-batch of the step, if gradients are in host memory
    bool last;   // true for the last micro-batch of the step, whose gradients are reduced during backward
  };
  BlockInputs* block_inputs(int chunk, int frame) {
    return block_inputs_.empty() ? nullptr : &block_inputs_[size_t(chunk)][size_t(frame)];
  }
  void plan_block_inputs(const Shape& input);
  void run_passes(Ctx, const Passes&, const PhaseRunner::Enter&);
  void run_forward(Ctx&, const Passes&);
  void run_backward(Ctx&, const Passes&, const PhaseRunner::Enter&);
  size_t run_actions(size_t first, PhaseClock&);  // returns the number of the next action
  SequenceRows sequence_rows() const;
  void run_transfer(Ctx, const StageAction&, MicroFrame&, FrameTensors&);
  void replay_transfer(const StageAction&, const FrameTensors&);
  // True if captured graphs may replace the host code of passes. In a pipeline this holds only in steps in which all
  // passes have a graph: a pass that is not captured needs the state that the host code of earlier passes leaves in its
  // frame.
  bool replays() const {
    if (!options_.graphs || !backend_.device.can_capture()) return false;
    return stage_.stages() == 1 || steps_of_program_ >= kStepsToCapture;
  }
  void send_to_stage(const StageAction&, const Tensor&);
  Buffer receive(Ctx&, const StageAction&, const char* name);
  void record_chunk(int chunk);
  void agree_among_stages(Ctx&);
  void agree_among_workers(Ctx&);
  void average_over_workers(Ctx&);
  void require_workers() const;
  bool compresses() const { return optimizer_ && optimizer_->compresses(); }
  const char* optimizer_phase() const { return compressed_ ? "optimizer with compressed momentum" : "optimizer"; }
  void record_rounds();
  void enter(Phase phase, PhaseClock& clock) {
    clock.enter(phase);
    mark(phase);
  }
  void mark(Phase phase) { marks_.push_back({phase, backend_.device.record(Stream::compute)}); }
  PhaseTimes device_times(const ClosedStep&) const;
  void run_evaluation(Ctx, int chunk);
  void init_images();
  void predict_classes(Ctx&, const Var& x);  // x: [N, C], output of the final norm
  void run_optimizer(Ctx, const PhaseRunner::Enter&);
  void run_end_of_leaf(Ctx, int64_t leaf);
  void add_norms(Ctx&);
  void end_scores(Ctx&);
  void sum_expert_counts(Ctx&);
  void step_router_bias(Ctx&);
  Fill no_scores() const { return {.x = max_attention_logits_, .value = -std::numeric_limits<float>::infinity()}; }
  void run_micro_norm(Ctx);
  enum class QuantizedFor : uint8_t { step, evaluation };
  void refresh_quantized(QuantizedFor);
  // Runs fn(Ctx&), without a tape, in the arena phase of this name.
  template <class Fn>
  void run_phase(const std::string& phase, const Fn& fn) {
    arena_.begin(phase);
    Ctx c = context(*ops_, nullptr);
    fn(c);
    arena_.end();
  }
  void agree_in_tensor_group(Ctx&);
  void run_logits(Ctx, std::vector<float>* out);
  void run_top_logits(Ctx);
  void init_teacher_logits(const TeacherLogits&);
  Distillation distillation(Ctx&, const MicroInputs&);
  void add_over_batches(Ctx&, const Tensor& sums);
  void load(std::span<const int32_t> tokens, std::span<const int32_t> targets, MicroInputs&, int64_t slot);
  std::vector<int32_t> previous_tokens(std::span<const int32_t> tokens) const;
  Classifier head() const;
  Tensor scalar(size_t offset, DType dtype) const;

  EngineOptions options_;
  std::string low_precision_;
  Backend backend_;
  Ops* ops_;
  Arena arena_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Model> teacher_;
  std::unique_ptr<Optimizer> optimizer_;
  std::optional<OuterOptimizer> outer_;      // used by local updates
  std::optional<AveragedWeights> averages_;  // used if evaluations may read averages
  std::optional<PrunedWeights> pruned_;
  std::optional<SparseWeights> sparse_;
  std::optional<QuantizedState> quantized_;  // used by FP8 and FP4 recipes, in training
  bool reads_averages_ = false;
  bool in_ring() const { return part_.ranks > 1 && options_.context_method == ContextMethod::ring; }
  Ring ring() const { return {part_.ranks, part_.rank, part_.piece_length(), widest_window()}; }
  int64_t widest_window() const;
  ContextPart part_;                // this rank's rows of a micro-batch
  std::vector<int32_t> part_rows_;  // rows of all context-parallel ranks; empty: this rank has all rows
  Stage stage_;
  std::vector<MicroInputs> micro_inputs_;        // one per micro-batch in progress
  std::vector<std::vector<MicroFrame>> frames_;  // frames of each chunk
  std::vector<std::vector<FrameTensors>> frame_tensors_;
  std::vector<std::vector<BlockInputs>> block_inputs_;  // offloaded inputs of each chunk and frame; or empty
  static constexpr int64_t kStepsToCapture = 2;         // PhaseRunner's eager run and the run that it captures
  int64_t steps_of_program_ = 0;                        // steps run since the step's program changed
  size_t next_action_ = 0;                              // next action of the accumulating step
  StageLinks links_;

  Tensor state_;                 // StepState
  Tensor window_;                // SpikeWindow, if spikes are detected
  Tensor max_attention_logits_;  // with QK-clip: see Ctx::max_attention_logits
  Tensor least_factors_;         // [L] f64: Routing::least_factors; only with an expert_buffer_factor
  Tensor routing_;               // [L, E + 4] f64: RouterStatistics since they were last taken; only with experts
  Tensor expert_counts_;         // [L, E] f64: tokens per expert in the accumulating step, if routers have a bias
  Tensor running_counts_;        // [L, E] f64: ExpertLoads::running, with aux_loss_scope global_batch
  Tensor source_sums_;           // [2, sources] f64: SourceLosses of the accumulating step, if there are sources
  Tensor eval_sum_;              // [1] f64
  Tensor leaf_sums_;   // [leaves, 1 + units] f64: each leaf's loss sum, then each unit's squared gradient norm
  Tensor logit_rows_;  // [N] i32: 0, 1, 2, ...
  // Models that read images, on the last stage: [images] i32, the rows of the class tokens; and for each the class with
  // the largest logit.
  Tensor class_rows_;
  TeacherLogits classes_;
  TeacherLogits top_;          // largest logits of this engine's model, if wanted
  int64_t top_vocab_ = 0;      // number of tokens among which top_ has the largest logits
  float top_temperature_ = 1;  // divides the logits that TopLogits adds up
  TopLogitRows next_teacher_;
  std::span<const uint8_t> next_pixels_;
  bool want_logits_ = false, recorded_micro_batch_ = false, recorded_ = false;
  std::map<std::tuple<int, int, int, bool, std::optional<StageAction::Kind>, bool, bool>, PhaseRunner>
      micro_runners_;                             // keys: the passes that a runner runs
  std::array<PhaseRunner, 2> optimizer_runners_;  // runners of steps with uncompressed and with compressed gradients
  bool compressed_ = false;
  std::vector<PhaseRunner> evaluation_runners_;  // one per chunk
  std::vector<Span> documents_;                  // spans of the following micro-batches, if they have changed
  std::vector<int32_t> positions_;
  std::vector<int32_t> sources_;  // sources of the sequences of the following micro-batches
  std::vector<int32_t> tokens_ahead(std::span<const int32_t> targets) const;
  std::vector<bool> first_rows_;                   // rows of whole sequences: true where a document or sequence begins
  std::vector<int32_t> own_tokens_, own_targets_;  // this rank's rows, if other ranks have other rows of its sequences
  // Pinned: data that load() copies per micro-batch; StepState of each step.
  std::unique_ptr<HostRing> inputs_, states_;
  int64_t step_micro_batches_ = 0;
  int64_t step_slot_ = 0, micro_slot_ = 0;  // slots of the accumulating step and of its next micro-batch
  std::vector<Mark> marks_;                 // marks of the accumulating step
  std::deque<ClosedStep> closed_;
  std::unique_ptr<Event> last_end_;  // end of the last collected step; null if other work followed it
  std::vector<Launch> micro_launches_, update_launches_;
  TensorSums micro_tensor_sums_, micro_context_sums_, micro_expert_sums_;
  ContextPasses micro_context_passes_;
  UpdateSums update_sums_;
  StateTraffic state_traffic_;
  UnitTraffic unit_traffic_;
  PlanOps plan_;                                                         // ops of the dry runs
  size_t micro_gemms_ = 0, micro_of_quantized_ = 0, micro_grouped_ = 0;  // GEMMs of a micro-batch; first in plan_
  MemoryPlan memory_;
};

}  // namespace athanor
