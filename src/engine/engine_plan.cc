// Plans an engine before it has any memory: its buffers, and a dry run of each phase.
#include <algorithm>
#include <utility>

#include "base/int.h"
#include "engine/engine.h"
#include "model/int8_weights.h"

namespace athanor {
namespace {

constexpr int64_t kScaledRows = 128;  // max rows of a chunk of logits that share a scale with block scaling

// Rows of logits per chunk: equal chunks within the budget, rounded up to whole GEMM tiles. Each chunk reads and writes
// the head's whole gradient; with several thousand rows the GEMM hides that traffic.
int64_t auto_chunk_rows(int64_t rows, int64_t row_bytes, size_t budget) {
  constexpr int64_t kEnough = 8192, kTile = 128;
  const int64_t most = std::clamp<int64_t>(int64_t(budget) / row_bytes, 1, kEnough);
  const int64_t equal = div_ceil(rows, div_ceil(rows, most));
  return std::min(most, round_up(equal, kTile));
}

// Returns sequence s of a micro-batch as one document.
Span whole_sequence(int64_t s, int64_t t) {
  const auto begin = narrow<int32_t>(s * t), length = narrow<int32_t>(t);
  return {.q_begin = begin, .q_len = length, .k_begin = begin, .k_len = length, .q_pos = 0, .k_pos = 0};
}

}  // namespace

Engine::Engine(const ModelConfig& config, const EngineOptions& options, Backend backend)
    : options_(options), backend_(backend), ops_(&backend.ops), model_(make_model(config)), plan_(backend.ops) {
  options_.recipe.transposes_quantized = backend.ops.transposes_quantized();
  const int64_t sequences = options_.micro_batch_size;
  const Communicator& context = backend_.mesh.context();
  part_ = {.ranks = context.size(), .rank = context.rank(), .sequences = sequences, .length = options_.seq_length};
  const int64_t n = part_.rows();
  if (options_.documents.empty())
    for (int64_t s = 0; s < sequences; ++s) options_.documents.push_back(whole_sequence(s, options_.seq_length));
  if (options_.documents_per_sequence > 1)
    options_.documents.resize(size_t(sequences * options_.documents_per_sequence), Span{});
  for (const std::string& name : options_.frozen) model_->params().freeze(name);
  if (options_.lora.rank > 0) add_adapters(*model_, options_.lora);
  if (!options_.training) store_for_inference(*model_, options_.weights, options_.recipe);
  if (backend_.mesh.experts().size() > 1) model_->params().separate_experts();
  const TensorRank tensor = {.ranks = backend_.mesh.tensor().size(),
                             .rank = backend_.mesh.tensor().rank(),
                             .sequence_parallel = options_.sequence_parallel};
  if (options_.recipe.low_precision())
    low_precision_ = choose_low_precision(*model_, options_.recipe, options_.high_layers, n, tensor);
  Communicator& stages = backend_.mesh.stages();
  stage_ = Stage(options_.pipeline, stages.size(), stages.rank(), *model_, options_.seq_length);
  if (options_.training) optimizer_ = std::make_unique<Optimizer>(options_.optimizer, model_->params());
  if (tensor.ranks > 1) require_tensor_parallel();
  if (part_.ranks > 1) require_context_parallel();
  if (stage_.stages() > 1) require_pipeline();
  CHECK(options_.global_batch_size % (options_.micro_batch_size * ranks()) == 0, "a global batch of ",
        options_.global_batch_size, " for ", ranks(), " ranks and micro-batches of ", options_.micro_batch_size);
  const Communicator& workers = backend_.mesh.workers();
  CHECK(workers.size() * stages.size() * backend_.mesh.data_parallel().size() * backend_.mesh.tensor().size() ==
            devices(),
        devices(), " ranks in ", workers.size(), " workers, of which ", stages.size(), " are stages, ",
        backend_.mesh.data_parallel().size(), " data-parallel and ", backend_.mesh.tensor().size(),
        " tensor-parallel: the others would not receive a step's requests");
  if (workers.size() > 1) require_workers();
  if (backend_.mesh.experts().size() > 1) require_expert_parallel();
  if (options_.training && options_.host_units > 0) require_host_units();
  CHECK(devices() < kRequestRadix, devices(), " ranks are more than are counted");
  step_micro_batches_ = micro_batches();
  stage_.set_micro_batches(step_micro_batches_);
  const int64_t leaves = options_.logical_shards;
  CHECK(leaves == 0 || (std::has_single_bit(uint64_t(leaves)) && leaves % ranks() == 0 &&
                        options_.global_batch_size % (options_.micro_batch_size * leaves) == 0),
        leaves, " logical shards for ", ranks(), " ranks and a global batch of ", options_.global_batch_size,
        " in micro-batches of ", options_.micro_batch_size);
  const Communicator& shards = backend_.mesh.shards();
  std::vector<StateSpec> states = optimizer_ ? optimizer_->states() : std::vector<StateSpec>{};
  if (options_.training && options_.recipe.low_precision()) quantized_.emplace(model_->params(), options_.recipe);
  if (quantized_ && options_.keep_quantized) quantized_->gather_quantized();
  if (quantized_)
    if (auto history = quantized_->history()) states.push_back(std::move(*history));
  if (options_.training && options_.pruning && options_.pruning->method == PruneMethod::magnitude)
    states.push_back(pruned_.emplace(model_->params(), *options_.pruning).state());
  if (options_.training && options_.pruning && options_.pruning->method == PruneMethod::srste)
    sparse_.emplace(model_->params(), *options_.pruning);
  if (options_.training && options_.outer.steps > 0)
    outer_.emplace(options_.outer, model_->params(), overlaps_rounds());
  if (outer_) std::ranges::move(outer_->states(), std::back_inserter(states));
  if (options_.training && options_.packed.weights)
    states.push_back(model_->params().sent_weight_state(options_.recipe.compute));
  model_->plan(memory_, options_.recipe, options_.training, std::move(states),
               {.stage = options_.zero_stage,
                .shards = shards.size(),
                .index = shards.rank(),
                .logical = {.count = leaves, .mine = leaves / ranks()},
                .tensor = tensor,
                .experts = {.ranks = backend_.mesh.experts().size(),
                            .rank = backend_.mesh.experts().rank(),
                            .shards = backend_.mesh.expert_shards().size(),
                            .shard = backend_.mesh.expert_shards().rank()},
                .stages = stage_.units(*model_),
                .reduces_late = stage_.program().splits_backward,
                .worker = {.workers = workers.size(), .worker = workers.rank()},
                .states_home = options_.states_home,
                .host_units = options_.host_units,
                .packed = options_.packed});
  if (outer_) outer_->plan(memory_);
  if (pruned_) pruned_->planned();
  if (runs_teacher()) plan_teacher();
  if (quantized_ && model_->params().sharded()) low_precision_ += cat("; ", quantized_->how_gathered());
  if (options_.loss_chunk_rows == 0) {
    const int64_t columns = model_->params().placement(model_->head()).shape[0];  // columns of this rank's logits
    options_.loss_chunk_rows =
        auto_chunk_rows(n, columns * int64_t(size_of(options_.recipe.compute)), options_.logits_budget);
  }
  if (model_->params().spec(model_->head()).low_precision)
    options_.loss_chunk_rows = round_up(options_.loss_chunk_rows, kScaledRows);
  const auto is_evaluated = [](const StateSpec& s) {
    return s.name == kAverageMinusWeightState || s.name == kGlobalWeightState;
  };
  if (options_.training &&
      (options_.eval_averages || std::ranges::any_of(model_->params().state_specs(), is_evaluated)))
    averages_.emplace(model_->params()).plan(memory_);
  plan_inputs();
}

// Each rank of the last stage has the whole teacher.
void Engine::plan_teacher() {
  const ModelConfig& mine = model_->config();
  const ModelConfig& config = options_.teacher->model;
  CHECK(config.vocab_size == mine.vocab_size, "a teacher of ", config.vocab_size, " tokens for a model of ",
        mine.vocab_size);
  if (!stage_.has_head()) return;
  teacher_ = make_model(config);
  teacher_->plan(memory_, options_.recipe, false, {});
}

// Returns the widest window of all layers that read the spans of a micro-batch, those of a teacher included; 0:
// unlimited.
int64_t Engine::widest_window() const {
  int64_t widest = 0;
  for (const Model* model : {model_.get(), teacher_.get()})
    for (int64_t layer = 0; model && layer < model->config().num_hidden_layers; ++layer) {
      const int64_t window = model->attention_shape(int(layer)).window;
      if (window == 0) return 0;
      widest = std::max(widest, window);
    }
  return widest;
}

// Plans the inputs of micro-batch number `slot` of those in flight.
void Engine::plan_inputs(MicroInputs& in, size_t slot) {
  const int64_t n = part_.rows();
  const int64_t tables = in_ring() ? ring().tables() : part_.ranks > 1 ? 2 : 1;
  const auto input = [&](const char* name, DType dtype, Shape shape, Tensor* t) {
    memory_.add(MemoryKind::inputs, slot == 0 ? name : cat(name, " of micro-batch ", slot, " under way"), dtype, shape,
                t);
  };
  Batch& batch = in.batch;
  input("tokens", DType::i32, {n}, &batch.tokens);
  if (const ModelConfig& m = model_->config(); reads_images(m))
    input("pixels", DType::u8, {part_.sequences, m.num_channels * m.image_size * m.image_size}, &batch.pixels);
  input("targets", DType::i32, {n}, &batch.targets);
  input("positions", DType::i32, {n}, &batch.positions);
  const bool teacher_smears = teacher_ && teacher_->config().smear_channels > 0;
  if (model_->config().smear_channels > 0 || teacher_smears) input("previous tokens", DType::i32, {n}, &batch.previous);
  if (const auto m = int64_t(options_.ahead_weights.size()); m > 0 && options_.training && stage_.has_head()) {
    input("tokens further ahead", DType::i32, {n, m}, &batch.ahead);
    input("weights of tokens further ahead", DType::f32, {m}, &in.ahead_weights);
  }
  input("spans", DType::i32, {tables * int64_t(options_.documents.size()), kSpanWords}, &batch.spans);
  if (options_.documents_per_sequence > 1) batch.sequences = options_.micro_batch_size;
  if (in_ring()) batch.piece_length = part_.piece_length(), batch.ring_window = widest_window();
  if (part_.ranks > 1) {
    if (!in_ring() || routes_sequences())
      input("rows of ranks that share sequences", DType::i32, {part_.all_rows()}, &batch.context_rows);
    input("losses of ranks that share sequences", DType::f32, {part_.all_rows()}, &in.all_losses);
  }
  input("losses", DType::f32, {n}, &in.losses);
  if (distills()) input("losses against the teacher", DType::f32, {n}, &in.divergences);
  if (const int64_t k = distills() && stage_.has_head() ? options_.teacher->top_k : 0; k > 0) {
    input("ids of the teacher's logits", DType::i32, {n, k}, &in.top.ids);
    input("teacher's logits", DType::f32, {n, k}, &in.top.values);
    input("rest of the teacher's logits", DType::f32, {n}, &in.top.rest);
  }
  input("target count", DType::f32, {1}, &in.targets);
  if (source_count() > 0) input("sources of sequences", DType::i32, {part_.sequences}, &in.sources);
  if (options_.training && (options_.lora.dropout > 0 || options_.depth.rate > 0 || options_.hidden_dropout > 0))
    input("number of the first row", DType::i64, {1}, &in.first_row);
}

void Engine::plan_inputs() {
  const int64_t leaves = options_.logical_shards;
  sources_.assign(size_t(part_.sequences), 0);
  const auto input = [&](const char* name, DType dtype, Shape shape, Tensor* t) {
    memory_.add(MemoryKind::inputs, name, dtype, shape, t);
  };
  micro_inputs_.resize(options_.training ? size_t(stage_.frames().slots) : 1);
  for (size_t slot = 0; slot < micro_inputs_.size(); ++slot) plan_inputs(micro_inputs_[slot], slot);
  if (reads_images(model_->config()) && stage_.has_head()) {
    const int64_t images = part_.sequences;
    input("rows of class tokens", DType::i32, {images}, &class_rows_);
    input("predicted classes", DType::i32, {images, 1}, &classes_.ids);
    input("their logits", DType::f32, {images, 1}, &classes_.values);
    input("rest of the logits", DType::f32, {images}, &classes_.rest);
  }
  for (int chunk = 0; chunk < stage_.chunks(); ++chunk) {
    frames_.emplace_back(size_t(stage_.frames().frames[size_t(chunk)]));
    frame_tensors_.emplace_back(frames_.back().size());
  }
  const int64_t rows = part_.rows() / (options_.sequence_parallel ? backend_.mesh.tensor().size() : 1);
  const Shape stream{rows, model_->config().hidden_size};
  if (stage_.stages() > 1) links_.plan(memory_, stage_, options_.recipe.compute, stream);
  if (options_.training && options_.offload_inputs) plan_block_inputs(stream);
  input("step state", DType::u8, {int64_t(sizeof(StepState))}, &state_);
  if (options_.training && options_.spikes.deviations > 0)
    input("latest losses and norms", DType::u8, {int64_t(sizeof(SpikeWindow))}, &window_);
  if (quantized_) quantized_->plan(memory_, options_.keep_quantized, options_.quantized, stage_.stages() == 1);
  if (options_.training && options_.optimizer.qk_clip_threshold > 0)
    input("largest attention scores", DType::f32,
          {model_->config().num_hidden_layers, model_->attention_shape(0).heads}, &max_attention_logits_);
  if (const int64_t experts = model_->config().num_experts; options_.training && experts > 0)
    input("statistics of routers", DType::f64, {model_->config().num_hidden_layers, RouterStatistics{experts}.size()},
          &routing_);
  if (options_.expert_buffer_factor > 0 && backend_.mesh.experts().size() > 1)
    input("least factors of buffers", DType::f64, {model_->config().num_hidden_layers}, &least_factors_);
  const Shape of_experts{model_->config().num_hidden_layers, model_->config().num_experts};
  if (options_.training && model_->router_bias() && !model_->params().spec(model_->router_bias()).frozen)
    input("tokens of each expert", DType::f64, of_experts, &expert_counts_);
  if (balances() && options_.aux_loss_scope == AuxLossScope::global_batch)
    input("tokens of each expert so far", DType::f64, of_experts, &running_counts_);
  if (source_count() > 0) input("sums of losses by source", DType::f64, {2, source_count()}, &source_sums_);
  input("evaluation sum", DType::f64, {1}, &eval_sum_);
  if (leaves > 0)
    input("sums of leaves", DType::f64, {leaves * int64_t(1 + model_->params().units().size())}, &leaf_sums_);
}

void Engine::plan_block_inputs(const Shape& input) {
  for (int chunk = 0; chunk < stage_.chunks(); ++chunk) {
    const ModelPart& part = stage_.part(chunk);
    int64_t whole = 0;
    for (int l = part.first; l < part.end; ++l) whole += is_recomputed_whole(options_.recompute, l) ? 1 : 0;
    std::vector<BlockInputs>& inputs = block_inputs_.emplace_back(frames_[size_t(chunk)].size());
    for (BlockInputs& of_frame : inputs) of_frame.plan(memory_, whole, options_.recipe.compute, input);
  }
}

size_t Engine::offloaded_inputs() const {
  size_t bytes = 0;
  for (const auto& of_chunk : block_inputs_) bytes += of_chunk.front().bytes();
  return bytes;
}

// These checks repeat those of config validation, which gives users a proper message.
void Engine::require_tensor_parallel() const {
  CHECK(options_.logical_shards == 0, "the tree of sums has no leaves for parts of a gradient");
}

void Engine::require_context_parallel() const {
  CHECK(part_.length % (2 * part_.ranks) == 0, "sequences of ", part_.length, " tokens in two pieces for each of ",
        part_.ranks, " ranks");
  CHECK(options_.context_method != ContextMethod::automatic, "ranks that share sequences choose before they plan");
  CHECK(options_.logical_shards == 0, "the tree of sums has no leaves for parts of sequences");
  CHECK(!options_.noise_scale, "gradients of parts of sequences have no noise scale");
}

void Engine::require_expert_parallel() const {
  const ProcessMesh& mesh = backend_.mesh;
  CHECK((mesh.tensor().size() == 1 || options_.sequence_parallel) && !outer_ && options_.logical_shards == 0 &&
            !runs_teacher() && !options_.pruning && !options_.noise_scale,
        "experts on several ranks are not supported with what else is asked for");
}

void Engine::require_host_units() const {
  const int shards = backend_.mesh.shards().size();
  CHECK(devices() == shards && (shards == 1 || options_.zero_stage == 3) && options_.logical_shards == 0 &&
            !options_.recipe.low_precision() && !options_.pruning && !options_.noise_scale && !outer_ &&
            !optimizer_->whole_gradients(),
        "units in host memory are not supported with what else is asked for");
}

void Engine::require_pipeline() const {
  CHECK(options_.zero_stage < 2, "stages of a pipeline need their gradients whole");
  CHECK(options_.logical_shards == 0, "the tree of sums has no leaves for micro-batches of a pipeline");
  CHECK(!options_.noise_scale, "a pipeline of stages with a noise scale");
}

void Engine::require_workers() const {
  CHECK(options_.outer.steps > 0 || compresses() || !options_.training, "workers that never agree on weights");
  CHECK(!compresses() ||
            (backend_.mesh.tensor().size() == 1 && stage_.stages() == 1 && backend_.mesh.experts().size() == 1),
        "ranks that have parts of a layer would compress what they share unlike each other");
  CHECK(options_.logical_shards == 0, "the tree of sums has no leaves for workers");
  CHECK(!options_.noise_scale, "steps of several workers have no noise scale");
}

// Dry-runs a micro-batch, chunk by chunk, with ops that launch nothing.
void Engine::record_micro_batch() {
  if (std::exchange(recorded_micro_batch_, true) || !options_.training) return;
  plan_.launches = &micro_launches_;
  micro_tensor_sums_.launches = micro_expert_sums_.launches = micro_context_passes_.launches = &micro_launches_;
  for (int chunk = 0; chunk < stage_.chunks(); ++chunk) record_chunk(chunk);
  micro_tensor_sums_.launches = micro_expert_sums_.launches = micro_context_passes_.launches = nullptr;
  micro_gemms_ = plan_.gemms.size();
  micro_of_quantized_ = plan_.of_quantized.size();
  micro_grouped_ = plan_.grouped.size();
}

// Records both kinds of steps of an optimizer that compresses momentum. Keeps the launches of compressed steps, since
// most steps are compressed.
void Engine::record_optimizer() {
  for (const bool compressed : {false, true}) {
    if (compressed && !compresses()) continue;
    compressed_ = compressed;
    update_launches_.clear(), update_sums_ = {}, state_traffic_ = {};
    arena_.record(optimizer_phase());
    Ctx update = context(plan_, nullptr);
    update.update_sums = &update_sums_;
    update.state_traffic = &state_traffic_;
    run_optimizer(update, [](Phase) {});
    arena_.finish_recording();
  }
  compressed_ = false;
}

void Engine::record_other_phases() {
  if (options_.training) {
    plan_.launches = &update_launches_;
    record_optimizer();
    if (options_.noise_scale) {
      arena_.record("norm of a micro-batch");
      run_micro_norm(context(plan_, nullptr));
      arena_.finish_recording();
    }
    plan_.launches = nullptr;
    arena_.record("initial weights");
    Ctx initial = context(plan_, nullptr);
    model_->params().init(initial, options_.seed);
    arena_.finish_recording();
  }
  arena_.record("refresh");
  Ctx refreshing = context(plan_, nullptr);
  model_->params().refresh_values(refreshing);
  arena_.finish_recording();
  if (options_.training && options_.packed.weights) {
    arena_.record("start of sent weights");
    Ctx starting = context(plan_, nullptr);
    model_->params().start_sent_weights(starting);
    arena_.finish_recording();
  }
  if (outer_) record_rounds();
  if (averages_) {
    arena_.record("averages in");
    Ctx c = context(plan_, nullptr);
    averages_->put_in(c);
    arena_.finish_recording();
    arena_.record("averages out");
    averages_->take_out(c);
    arena_.finish_recording();
  }
  if (pruned_) {
    arena_.record("pruning");
    Ctx c = context(plan_, nullptr);
    pruned_->apply(c);
    arena_.finish_recording();
  }
  if (quantized_) {
    arena_.record("quantized weights");
    Ctx c = context(plan_, nullptr);
    quantized_->begin_step(c);
    arena_.finish_recording();
  }
  for (int chunk = 0; chunk < stage_.chunks(); ++chunk) {
    arena_.record(stage_.phase("evaluation", chunk));
    run_evaluation(context(plan_, nullptr), chunk);
    arena_.finish_recording();
  }
  if (options_.training) {
    arena_.record(BlockGather::kPhase);
    { const BlockGather blocks(context(plan_, nullptr), model_->params(), options_.save_block_bytes); }
    arena_.finish_recording();
  }
  if (want_logits_) {
    arena_.record("logits");
    run_logits(context(plan_, nullptr), nullptr);
    arena_.finish_recording();
  }
  if (top_.ids) {
    arena_.record("top logits");
    run_top_logits(context(plan_, nullptr));
    arena_.finish_recording();
  }
  memory_.add(arena_);
}

size_t Engine::least_memory() {
  record_micro_batch();
  return memory_.total() + (recorded_ ? 0 : arena_.least_bytes());
}

const MemoryPlan& Engine::memory() {
  record_micro_batch();
  if (!std::exchange(recorded_, true)) record_other_phases();
  return memory_;
}

}  // namespace athanor
