#include "engine/engine.h"

#include <cstddef>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "base/int.h"
#include "nn/rows.h"

namespace athanor {
// Returns the max number of pieces that have at least least_piece elements each. FP8 and FP4 recipes use one piece,
// since their scales cover all rows.
int Engine::row_pieces(int64_t least_piece) const {
  const int64_t rows = part_.rows(), ranks = backend_.mesh.tensor().size();
  if (!options_.sequence_parallel || ranks == 1 || options_.recipe.low_precision()) return 1;
  for (int pieces = kMostRowPieces; pieces > 1; pieces /= 2)
    if (rows % (pieces * ranks) == 0 && rows / pieces * model_->config().hidden_size >= least_piece) return pieces;
  return 1;
}

Ctx Engine::context(Ops& ops, Tape* tape) {
  const bool streams = !backend_.device.unified();
  const int64_t least_piece =
      options_.least_piece.value_or(streams ? kLeastPiece : std::numeric_limits<int64_t>::max());
  return {.ops = ops,
          .device = backend_.device,
          .arena = arena_,
          .mesh = backend_.mesh,
          .recipe = options_.recipe,
          .tape = tape,
          .sequence_parallel = options_.sequence_parallel,
          .row_pieces = row_pieces(least_piece),
          .overlaps_sums = options_.overlaps_sums.value_or(streams) && !stage_.program().splits_backward,
          .least_piece = least_piece,
          .seed = options_.seed,
          .quantization = quantized_ ? quantized_->read() : Quantization{}};
}

// Gradients are divided by the tokens of global_batch_size; StepControl then rescales them to the step's targets.
void Engine::set_step_sequences(int64_t sequences) {
  const int64_t once = options_.micro_batch_size * ranks();
  CHECK(micro_slot_ == 0, "the size of a step changes while ", micro_slot_, " of its micro-batches are accumulated");
  CHECK(sequences > 0 && sequences <= options_.global_batch_size && sequences % once == 0, "a step of ", sequences,
        " sequences for ", ranks(), " ranks and micro-batches of ", options_.micro_batch_size);
  step_micro_batches_ = sequences / once;
  if (step_micro_batches_ != stage_.program().shape.micro_batches) {
    stage_.set_micro_batches(step_micro_batches_);
    steps_of_program_ = 0;
  }
  const int64_t leaves = options_.logical_shards;
  CHECK(leaves == 0 || step_micro_batches_ * ranks() % leaves == 0, leaves, " logical shards for a step of ", sequences,
        " sequences");
}

void Engine::commit() {
  memory();
  Device& device = backend_.device;
  memory_.commit(device);
  if (stage_.stages() > 1) links_.open(device, backend_.mesh.stages());
  model_->init_constants(device);
  if (teacher_) teacher_->init_constants(device);
  const MicroInputs& in = micro_inputs_.front();
  const auto bytes_of = [](const Tensor& t) { return t ? t.bytes() : 0; };
  if (!device.unified())
    inputs_ = std::make_unique<HostRing>(
        device,
        2 * in.batch.tokens.bytes() + in.targets.bytes() + bytes_of(in.batch.previous) + bytes_of(in.batch.ahead) +
            bytes_of(in.batch.pixels) + bytes_of(in.ahead_weights) + bytes_of(in.first_row) + bytes_of(in.sources) +
            in.batch.positions.bytes() + in.batch.spans.bytes() + in.top.bytes(),
        options_.training ? kStepsAhead * micro_batches() : 1);
  states_ = std::make_unique<HostRing>(device, sizeof(StepState) + bytes_of(source_sums_), kStepsAhead);
  if (part_.ranks > 1) {
    part_rows_ = part_.rows_of_ranks();
    for (const MicroInputs& each : micro_inputs_)
      if (const Tensor& rows = each.batch.context_rows)
        device.copy(rows.data, part_rows_.data(), rows.bytes(), Stream::compute);
  }
  set_documents({}, {});
  std::vector<int32_t> rows(size_t(in.batch.tokens.numel()));
  std::iota(rows.begin(), rows.end(), 0);
  if (want_logits_) device.copy(logit_rows_.data, rows.data(), logit_rows_.bytes(), Stream::compute);
  for (const MicroInputs& each : micro_inputs_) init_teacher_logits(each.top);
  init_images();
  StepState state;
  state.loss_scale = float(options_.loss_scale);
  state.hysteresis_left = options_.scaling.hysteresis;
  write_state(state);
  if (outer_) outer_->commit(device);
  if (window_) write_window({});
  if (max_attention_logits_) ops_->run(no_scores(), nullptr);
  for (const Tensor& counted : {routing_, least_factors_, expert_counts_, running_counts_, source_sums_})
    if (counted) ops_->run(Fill{.x = counted}, nullptr);
}

// Sets distinct ids, for callers that run steps without data.
void Engine::init_teacher_logits(const TeacherLogits& top) {
  if (!top.ids) return;
  std::vector<int32_t> ids(size_t(top.ids.numel()));
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = int32_t(i % size_t(top.ids.cols()));
  backend_.device.copy(top.ids.data, ids.data(), top.ids.bytes(), Stream::compute);
  backend_.device.sync();
}

void Engine::init_weights(ParamStore::Init which) {
  run_phase("initial weights", [&](Ctx& c) { model_->params().init(c, options_.seed, which); });
  refresh_quantized(QuantizedFor::step);
  start_states();
}

void Engine::refresh_values() {
  run_phase("refresh", [&](Ctx& c) { model_->params().refresh_values(c); });
  refresh_quantized(QuantizedFor::step);
}

// Requantizes the weights after they changed without a step.
void Engine::refresh_quantized(QuantizedFor which) {
  if (!quantized_) return;
  run_phase("quantized weights",
            [&](Ctx& c) { which == QuantizedFor::step ? quantized_->begin_step(c) : quantized_->quantize_weights(c); });
}

void Engine::set_documents(std::vector<Span> documents, std::vector<int32_t> positions) {
  const auto n = size_t(part_.all_rows());
  if (documents.empty()) {
    documents = options_.documents;
    positions.assign(n, 0);
    for (const Span& span : documents)
      std::iota(positions.begin() + span.q_begin, positions.begin() + span.q_begin + span.q_len, span.q_pos);
  }
  if (reads_images(model_->config()))  // attention is not causal: each query comes after all keys
    for (Span& span : documents) span.q_pos = span.k_pos + span.k_len;
  CHECK(documents.size() == options_.documents.size() && positions.size() == n, documents.size(), " documents and ",
        positions.size(), " positions, planned for ", options_.documents.size(), " and ", n);
  if (micro_inputs_.front().batch.previous || micro_inputs_.front().batch.ahead) {
    first_rows_.assign(n, false);
    for (const Span& span : documents)
      if (span.q_len > 0) first_rows_[size_t(span.q_begin)] = true;
  }
  documents_ = part_rows_.empty() ? std::move(documents) : in_ring() ? ring().cut(documents) : part_.cut(documents);
  positions_ = part_rows_.empty() ? std::move(positions) : part_.cut(part_rows_, positions.data());
  for (MicroInputs& in : micro_inputs_) in.documents_changed = true;
}

void Engine::load(std::span<const int32_t> tokens, std::span<const int32_t> targets, MicroInputs& in, int64_t slot) {
  CHECK(int64_t(tokens.size()) == part_.all_rows() && targets.size() == tokens.size(), "a micro-batch has ",
        part_.all_rows(), " tokens, got ", tokens.size());
  const std::vector<int32_t> previous = in.batch.previous ? previous_tokens(tokens) : std::vector<int32_t>();
  const std::vector<int32_t> ahead = in.batch.ahead ? tokens_ahead(targets) : std::vector<int32_t>();
  if (!part_rows_.empty()) {
    own_tokens_ = part_.cut(part_rows_, tokens.data()), own_targets_ = part_.cut(part_rows_, targets.data());
    tokens = own_tokens_, targets = own_targets_;
  }
  CHECK(!inputs_ || slot < inputs_->slots(), "more micro-batches in a step than the ", micro_batches(), " planned");
  // The device may read the slot later, so the slot must not be in use by an earlier copy.
  auto* pinned = inputs_ ? static_cast<std::byte*>(inputs_->slot(slot)) : nullptr;
  const auto upload = [&](const Tensor& to, const void* from) {
    if (pinned) {
      from = std::memcpy(pinned, from, to.bytes());
      pinned += to.bytes();
    }
    backend_.device.copy(to.data, from, to.bytes(), Stream::compute);
  };
  const auto upload_rows = [&](const Tensor& to, const void* whole) {
    if (part_rows_.empty()) return upload(to, whole);
    // upload() copies the temporary.
    upload(to, part_.cut_rows(part_rows_, whole, to.bytes() / size_t(to.shape[0])).data());
  };
  const auto count = float(std::count_if(targets.begin(), targets.end(), [](int32_t t) { return t >= 0; }));
  upload(in.batch.tokens, tokens.data());
  upload(in.batch.targets, targets.data());
  upload(in.targets, &count);
  if (in.batch.previous) upload(in.batch.previous, previous.data());
  if (in.batch.ahead) {
    upload_rows(in.batch.ahead, ahead.data());
    upload(in.ahead_weights, options_.ahead_weights.data());
  }
  const int64_t micro = slot - step_slot_ * micro_batches();
  const int64_t first_row = micro_batch_order().number(micro) * part_.rows();
  if (in.first_row) upload(in.first_row, &first_row);
  if (in.sources) upload(in.sources, sources_.data());
  if (const auto pixels = std::exchange(next_pixels_, {}); in.batch.pixels && !pixels.empty()) {
    CHECK(pixels.size() == in.batch.pixels.bytes(), pixels.size(), " pixels of ", in.batch.pixels.shape);
    upload(in.batch.pixels, pixels.data());
  }
  if (const TopLogitRows top = std::exchange(next_teacher_, {}); in.top.ids && !top.ids.empty()) {
    CHECK(
        int64_t(top.rest.size()) == part_.all_rows() && int64_t(top.ids.size()) == part_.all_rows() * in.top.ids.cols(),
        "logits of a teacher at ", top.rest.size(), " positions");
    upload_rows(in.top.ids, top.ids.data()), upload_rows(in.top.values, top.values.data());
    upload_rows(in.top.rest, top.rest.data());
  }
  if (!std::exchange(in.documents_changed, false)) return;
  upload(in.batch.positions, positions_.data());
  upload(in.batch.spans, documents_.data());
}

// Returns the preceding token of each of this rank's rows.
std::vector<int32_t> Engine::previous_tokens(std::span<const int32_t> tokens) const {
  std::vector<int32_t> previous(tokens.size(), int32_t(model_->config().vocab_size));
  for (size_t i = 1; i < tokens.size(); ++i)
    if (!first_rows_[i]) previous[i] = tokens[i - 1];
  return part_rows_.empty() ? previous : part_.cut(part_rows_, previous.data());
}

// Returns the targets of the next m rows for each row of the whole sequences; -1 beyond the end of its document or
// sequence.
std::vector<int32_t> Engine::tokens_ahead(std::span<const int32_t> targets) const {
  const size_t m = options_.ahead_weights.size();
  std::vector<int32_t> ahead(targets.size() * m, -1);
  for (size_t i = 0; i < targets.size(); ++i)
    for (size_t j = 0; j < m && i + j + 1 < targets.size() && !first_rows_[i + j + 1]; ++j)
      ahead[i * m + j] = targets[i + j + 1];
  return ahead;
}

Tensor Engine::scalar(size_t offset, DType dtype) const { return {state_.at(int64_t(offset)), dtype, {1}}; }

Classifier Engine::head() const {
  return {.w = model_->head(),
          .vocab = model_->config().vocab_size,
          .chunk_rows = options_.loss_chunk_rows,
          .loss_scale = scalar(offsetof(StepState, loss_scale), DType::f32),
          .inv_count =
              float(double(backend_.mesh.workers().size()) / double(options_.global_batch_size * options_.seq_length)),
          .z_loss = float(options_.z_loss),
          .softcap = float(model_->config().final_logit_softcapping),
          .b = model_->head_bias()};
}

// Keeps the loss of each leaf separate; the end of the step adds all leaves in order.
void Engine::run_end_of_leaf(Ctx c, int64_t leaf) {
  const Tensor loss = scalar(offsetof(StepState, loss_sum), DType::f64);
  const int64_t number = rank() * (options_.logical_shards / ranks()) + leaf;
  c.run(ReduceSum{.out = leaf_sums_.slice(number, number + 1), .x = loss});
  c.run(Fill{.x = loss});
  model_->params().end_leaf(c, leaf);
}

// In a pipeline, a stage that has finished a micro-batch continues with the next one.
void Engine::run_evaluation(Ctx c, int chunk) {
  const MicroInputs& inputs = micro_inputs_.front();
  const ModelPart& part = stage_.part(chunk);
  c.routing = {.buffer_factor = options_.expert_buffer_factor, .least_factors = least_factors_};
  Var in =
      part.embeds ? Var{} : c.var(receive(c, {StageAction::Kind::receive_activation, chunk}, "received activations"));
  Var x = forward_part(*model_, c, inputs.batch, {}, part, std::move(in));
  if (!part.ends) return send_to_stage({StageAction::Kind::send_activation, chunk}, x.t());
  if (class_rows_) predict_classes(c, x);
  classifier({c, model_->params()}, std::move(x), inputs.batch, head(), inputs.losses);
  release_head(*model_, c);
  c.run(Fill{.x = eval_sum_});
  c.run(ReduceSum{.out = eval_sum_, .x = inputs.losses});
  if (part_.ranks == 1) return;
  c.all_reduce(backend_.mesh.context(), eval_sum_);
  c.all_gather(backend_.mesh.context(), inputs.all_losses, inputs.losses);
}

// With logical shards, a unit has one slice per leaf, each with its own sum.
void Engine::add_norms(Ctx& c) {
  const ParamStore& params = model_->params();
  const int64_t parts = std::max<int64_t>(1, options_.logical_shards);
  SquaredNorm norm{.out = leaf_sums_ ? leaf_sums_.slice(options_.logical_shards, leaf_sums_.numel())
                                     : scalar(offsetof(StepState, norm_sq), DType::f64),
                   .x = {}};
  bool any = false;
  for (const auto& unit : params.units()) {
    if (unit->layout.numel == 0) continue;  // the unit is on another stage
    if (unit->home != Mem::device) {        // its norm is already computed and is added here, in the order of units
      if (std::exchange(any, false)) c.run(norm);
      norm.x.clear();
      if (unit->norm) c.run(ReduceSum{.out = norm.out, .x = unit->norm});
      continue;
    }
    const int64_t size = unit->layout.numel / parts;
    for (int64_t part = 0; part < parts; ++part) {
      const auto ranges =
          params.counted(backend_.mesh, *unit, {part * size, std::min((part + 1) * size, unit->layout.trained)});
      for (const auto& range : ranges) norm.x.push_back(unit->part(unit->grad, range));
      any = any || !ranges.empty();
      if (ranges.empty()) norm.x.push_back({nullptr, options_.recipe.gradients, {0}});
    }
  }
  if (any) c.run(norm);
}

// Sums over tensor-parallel ranks, which have counted different gradients and requests. Their losses are equal, except
// that a rank without data has an infinite loss: the max makes all ranks skip that step.
void Engine::agree_in_tensor_group(Ctx& c) {
  Communicator& group = backend_.mesh.tensor();
  c.all_reduce(group, scalar(offsetof(StepState, norm_sq), DType::f64));
  Tensor losses = scalar(offsetof(StepState, loss_sum), DType::f64);
  static_assert(offsetof(StepState, targets) == offsetof(StepState, loss_sum) + sizeof(double));
  losses.shape = {2};
  c.all_reduce(group, losses, Reduce::max);
  Tensor requests = scalar(offsetof(StepState, requests), DType::f64);
  requests.shape = {kRequestSums};
  c.all_reduce(group, requests);
}

MicroGradients Engine::micro_gradients() const {
  const auto& units = model_->params().units();
  const ParamStore::Unit& unit = **std::ranges::find_if(units, [](const auto& each) { return !each->frozen; });
  if (!unit.is_shard(unit.grad)) return {options_.micro_batch_size, ranks()};
  const int copies = backend_.mesh.copies().size();
  return {options_.micro_batch_size * (ranks() / copies), copies};
}

// Computes the norm of the gradient that this rank has accumulated: its whole gradient, or its shard of the sum over
// the ranks of one replica.
void Engine::run_micro_norm(Ctx c) {
  SquaredNorm norm{.out = scalar(offsetof(StepState, micro_norm_sq), DType::f64), .x = {}};
  for (const auto& unit : model_->params().units()) {
    if (unit->frozen) continue;
    const ParamStore::Range all{0, unit->layout.trained};
    const auto range = unit->is_shard(unit->grad) ? unit->owned(all.begin, all.end) : all;
    norm.x.push_back(range.begin < range.end ? unit->part(unit->grad, range) : Tensor{nullptr, unit->grad.dtype, {0}});
  }
  c.run(norm);
}

// Max-reduces over tensor-parallel ranks, which have the logits of their heads, and over stages, which have those of
// their blocks.
void Engine::end_scores(Ctx& c) {
  for (Communicator* group : {&backend_.mesh.tensor(), &backend_.mesh.stages()})
    if (group->size() > 1)
      c.all_reduce(*group, scalar(offsetof(StepState, max_attention_logit), DType::f32), Reduce::max);
  c.run(no_scores());
}

// Sums over all ranks, so that the router biases stay the same on all of them. The counts are integers, so their sums
// are exact in any order. A stage has zeros for the layers of other stages.
void Engine::sum_expert_counts(Ctx& c) {
  const ProcessMesh& mesh = backend_.mesh;
  const CollectiveSubject subject("tokens of each expert");
  for (Communicator* group : {&mesh.data_parallel(), &mesh.stages(), &mesh.workers()})
    if (group->size() > 1) c.all_reduce(*group, expert_counts_);
}

void Engine::step_router_bias(Ctx& c) {
  const ModelConfig& m = model_->config();
  c.run(StepRouterBias{.bias = model_->params().value(model_->router_bias()),
                       .counts = expert_counts_.slice(m.first_k_dense_replace, m.num_hidden_layers),
                       .state = state_,
                       .rate = options_.router_bias_rate});
}

void Engine::run_optimizer(Ctx c, const PhaseRunner::Enter& enter) {
  ParamStore& params = model_->params();
  const bool averages = compresses() && !compressed_ && backend_.mesh.workers().size() > 1;
  if (backend_.mesh.data_parallel().size() > 1 || averages) enter(Phase::communication);
  params.reduce_gradients(c);
  if (averages) average_over_workers(c);
  enter(Phase::optimizer);
  add_norms(c);
  // All ranks get the same sums and therefore make the same decisions.
  Communicator& all = backend_.mesh.data_parallel();
  const Tensor loss = scalar(offsetof(StepState, loss_sum), DType::f64);
  const Tensor norm = scalar(offsetof(StepState, norm_sq), DType::f64);
  Tensor counts = scalar(offsetof(StepState, targets), DType::f64);  // integers: their sums are exact in any order
  static_assert(offsetof(StepState, requests) == offsetof(StepState, targets) + sizeof(double));
  counts.shape = {1 + kRequestSums};
  c.all_reduce(all, counts);
  if (leaf_sums_) {
    c.all_reduce(all, leaf_sums_);  // exact, since each element is zero on all ranks but one
    c.run(ReduceSum{.out = loss, .x = leaf_sums_.slice(0, options_.logical_shards)});
    c.run(ReduceSum{.out = norm, .x = leaf_sums_.slice(options_.logical_shards, leaf_sums_.numel())});
    c.run(Fill{.x = leaf_sums_});
  } else {
    c.all_reduce(all, loss);
    c.all_reduce(all, norm);
  }
  if (options_.noise_scale) c.all_reduce(all, scalar(offsetof(StepState, micro_norm_sq), DType::f64));
  if (distills()) add_over_batches(c, scalar(offsetof(StepState, distill_sum), DType::f64));
  if (source_sums_) add_over_batches(c, source_sums_);
  if (params.tensor().ranks > 1) agree_in_tensor_group(c);
  if (stage_.stages() > 1) agree_among_stages(c);
  if (backend_.mesh.workers().size() > 1) agree_among_workers(c);
  c.max_attention_logits = max_attention_logits_;
  if (max_attention_logits_) c.all_reduce(all, max_attention_logits_, Reduce::max);
  if (expert_counts_) sum_expert_counts(c);
  StepControl control{.state = state_,
                      .window = window_,
                      .scores = max_attention_logits_,
                      .schedule = options_.schedule,
                      .scaling = options_.scaling,
                      .clip_grad = options_.clip_grad,
                      .divided_by = double(options_.global_batch_size * options_.seq_length),
                      .spikes = options_.spikes,
                      .workers = backend_.mesh.workers().size()};
  std::ranges::copy(optimizer_->averages(), control.averages);
  c.run(control);
  if (sparse_) sparse_->decay(c, state_);
  optimizer_->step(c, params, state_, compressed_);
  if (pruned_) pruned_->apply(c);
  if (max_attention_logits_) end_scores(c);
  if (expert_counts_) step_router_bias(c);
  if (running_counts_) c.run(Fill{.x = running_counts_});
  if (backend_.mesh.data_parallel().size() > 1) enter(Phase::communication);
  params.send_weights(c);
  if (!quantized_) return;
  if (backend_.mesh.data_parallel().size() > 1) enter(Phase::optimizer);
  quantized_->end_step(c, state_);
}

void Engine::micro_batch(std::span<const int32_t> tokens, std::span<const int32_t> targets, PhaseClock& clock) {
  CHECK(uncollected() < kStepsAhead, uncollected(), " steps wait for collect(); the slots of their inputs are in use");
  CHECK(!reads_averages_, "training reads the averages of the weights; use_weights() comes first");
  if (devices() == 1 && micro_slot_ >= stage_.program().shape.micro_batches) stage_.set_micro_batches(micro_slot_ + 1);
  const Actions& actions = stage_.actions();
  CHECK(next_action_ < actions.size(), "more micro-batches than the ", step_micro_batches_, " of a step");
  const auto slot = size_t(stage_.frames().slot[next_action_]);  // the next action is the first of the micro-batch
  load(tokens, targets, micro_inputs_[slot], step_slot_ * micro_batches() + micro_slot_++);
  while (next_action_ < actions.size() && actions[next_action_].micro_batch < micro_slot_)
    next_action_ = run_actions(next_action_, clock);
  if (options_.noise_scale && micro_slot_ == 1 && step_micro_batches_ > 1) {
    arena_.begin("norm of a micro-batch");
    run_micro_norm(context(*ops_, nullptr));
    arena_.end();
  }
  if (const int64_t leaves = options_.logical_shards / ranks(); leaves > 0) {
    const int64_t each = step_micro_batches_ / leaves;
    if (micro_slot_ % each == 0) run_end_of_leaf(context(*ops_, nullptr), micro_slot_ / each - 1);
  }
  clock.enter(Phase::other);
}

void Engine::close_step(PhaseClock& clock, RequestBits requests) {
  CHECK(devices() == 1 || micro_slot_ == step_micro_batches_, "a step of ", micro_slot_, " micro-batches, ",
        step_micro_batches_, " are to be summed over the ranks");
  Device& device = backend_.device;
  auto* result = static_cast<StepState*>(states_->slot(step_slot_));
  write_requests(requests, result->requests);
  device.copy(state_.at(int64_t(offsetof(StepState, requests))), result->requests, sizeof result->requests,
              Stream::compute);
  links_.finish();
  const auto body = [&](const PhaseRunner::Enter& on) {
    arena_.begin(optimizer_phase());
    run_optimizer(context(*ops_, nullptr), on);
    arena_.end();
  };
  optimizer_runners_[compressed_ ? 1 : 0].run(device, options_.graphs, body, [&](Phase phase) { enter(phase, clock); });
  clock.enter(Phase::other);
  device.copy(result, state_.data, sizeof(StepState), Stream::compute);
  if (source_sums_) {
    device.copy(result + 1, source_sums_.data, source_sums_.bytes(), Stream::compute);
    ops_->run(Fill{.x = source_sums_}, nullptr);
  }
  closed_.push_back({step_slot_, std::exchange(marks_, {}), device.record(Stream::compute)});
  step_slot_ = (step_slot_ + 1) % kStepsAhead;
  micro_slot_ = 0;
  next_action_ = 0;
  ++steps_of_program_;
}

PhaseTimes Engine::device_times(const ClosedStep& step) const {
  const Device& device = backend_.device;
  const auto ns = [&](const Event& from, const Event& to) { return int64_t(device.seconds(from, to) * 1e9); };
  PhaseTimes times;
  for (size_t i = 0; i < step.marks.size(); ++i)
    times[step.marks[i].phase] +=
        ns(*step.marks[i].start, i + 1 < step.marks.size() ? *step.marks[i + 1].start : *step.end);
  if (last_end_) times[Phase::other] += ns(*last_end_, *step.marks.front().start);
  return times;
}

StepResult Engine::collect() {
  CHECK(!closed_.empty(), "no step waits to be collected");
  ClosedStep step = std::move(closed_.front());
  closed_.pop_front();
  backend_.device.wait(*step.end);
  StepResult result;
  const auto* slot = static_cast<const StepState*>(states_->slot(step.slot));
  std::memcpy(&result.state, slot, sizeof result.state);
  if (source_sums_) {
    result.source_sums.resize(size_t(source_sums_.numel()));
    std::memcpy(result.source_sums.data(), slot + 1, source_sums_.bytes());
  }
  result.times = device_times(step);
  result.requests = read_requests(result.state.requests);
  last_end_ = std::move(step.end);
  return result;
}

StepState Engine::finish_step() {
  PhaseClock clock;
  close_step(clock);
  StepResult result;
  while (uncollected() > 0) result = collect();
  return result.state;
}

void Engine::discard_step() {
  CHECK(uncollected() == 0, "a step cannot be discarded while ", uncollected(), " before it wait to be collected");
  for (const auto& unit : model_->params().units())
    if (unit->grad && unit->home == Mem::device) ops_->run(Fill{.x = unit->grad}, nullptr);
  if (leaf_sums_) ops_->run(Fill{.x = leaf_sums_}, nullptr);
  if (max_attention_logits_) ops_->run(no_scores(), nullptr);
  for (const Tensor& counts : {expert_counts_, running_counts_})
    if (counts) ops_->run(Fill{.x = counts}, nullptr);
  discard_overflows();
  if (source_sums_) ops_->run(Fill{.x = source_sums_}, nullptr);
  StepState state = read_state();
  state.loss_sum = state.targets = state.micro_norm_sq = state.distill_sum = 0;
  write_state(state);
  refresh_quantized(QuantizedFor::step);
  marks_.clear();
  micro_slot_ = 0;
  next_action_ = 0;
}

void Engine::poison_step() {
  constexpr auto kInf = std::numeric_limits<float>::infinity();  // survives sums and NCCL's max; NaN may not
  ops_->run(Fill{.x = leaf_sums_ ? leaf_sums_ : scalar(offsetof(StepState, loss_sum), DType::f64), .value = kInf},
            nullptr);
}

double Engine::evaluate(std::span<const int32_t> tokens, std::span<const int32_t> targets) {
  CHECK(uncollected() == 0 && micro_slot_ == 0, "evaluation in the middle of a step");
  load(tokens, targets, micro_inputs_.front(), 0);
  evaluation_runners_.resize(size_t(stage_.chunks()));
  for (int chunk = 0; chunk < stage_.chunks(); ++chunk) {
    const auto body = [&](const PhaseRunner::Enter& on) {
      on(Phase::eval);
      arena_.begin(stage_.phase("evaluation", chunk));
      run_evaluation(context(*ops_, nullptr), chunk);
      arena_.end();
    };
    const bool graphs = options_.graphs && stage_.stages() == 1;  // a graph cannot capture transfers between stages
    evaluation_runners_[size_t(chunk)].run(backend_.device, graphs, body, [](Phase) {});
  }
  double sum = 0;
  if (stage_.has_head()) backend_.device.copy(&sum, eval_sum_.data, sizeof sum, Stream::compute);
  backend_.device.sync();
  last_end_ = nullptr;
  return sum;
}

void Engine::prune(double sparsity) {
  CHECK(pruned_, "pruning that was not planned");
  CHECK(uncollected() == 0 && micro_slot_ == 0, "pruning in the middle of a step");
  CHECK(!reads_averages_, "masters may be averages; use_weights() comes first");
  pruned_->choose(backend_.device, backend_.mesh, backend_.control, sparsity);
  zero_pruned();
}

void Engine::zero_pruned() {
  run_phase("pruning", [&](Ctx& c) { pruned_->apply(c); });
  refresh_values();
  last_end_ = nullptr;
}

std::vector<PrunedMatrix> Engine::pruned_matrices() {
  if (!pruned_) return {};
  return pruned_->matrices(backend_.device, backend_.mesh, backend_.control);
}

void Engine::use_averages() {
  CHECK(averages_ && !reads_averages_, "averages of the weights that were not planned or are in use");
  CHECK(uncollected() == 0 && micro_slot_ == 0, "averages in the middle of a step");
  if (read_state().updates == 0) return;
  run_phase("averages in", [&](Ctx& c) { averages_->put_in(c); });
  refresh_quantized(QuantizedFor::evaluation);
  reads_averages_ = true;
}

void Engine::use_weights() {
  if (!std::exchange(reads_averages_, false)) return;
  run_phase("averages out", [&](Ctx& c) { averages_->take_out(c); });
  refresh_quantized(QuantizedFor::evaluation);
}

void Engine::set_sliding_window(int64_t tokens) {
  if (model_->config().sliding_window == tokens) return;
  CHECK(part_.ranks == 1, "a window that changes on ranks that share sequences");
  backend_.device.sync();  // the graphs dropped below may still be running
  model_->set_sliding_window(tokens);
  evaluation_runners_.clear();
  micro_runners_.clear();
  steps_of_program_ = 0;
}

void Engine::set_ahead_weights(std::vector<float> weights) {
  CHECK(weights.size() == options_.ahead_weights.size(), weights.size(), " weights of tokens ahead, planned for ",
        options_.ahead_weights.size());
  options_.ahead_weights = std::move(weights);
}

void Engine::set_ops(Ops& ops, CaptureOps capture) {
  ops_ = &ops;
  if (capture == CaptureOps::no) options_.graphs = false;
  for (PhaseRunner& runner : optimizer_runners_) runner.forget();
  evaluation_runners_.clear();
  micro_runners_.clear();
  steps_of_program_ = 0;
}

}  // namespace athanor
