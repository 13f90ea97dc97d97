// Interpreter of a step's program: runs forward and backward of each micro-batch in the order of the stage's list, and
// the messages between stages. Without a pipeline each micro-batch runs forward, then backward.
#include <algorithm>
#include <cstddef>

#include "engine/engine.h"
#include "nn/rows.h"

namespace athanor {
namespace {

using Kind = StageAction::Kind;

// All kinds, in the order in which a micro-batch runs them.
constexpr Kind kKinds[] = {Kind::receive_activation, Kind::forward,        Kind::send_activation,
                           Kind::receive_gradient,   Kind::backward,       Kind::input_backward,
                           Kind::send_gradient,      Kind::weight_backward};

// Returns the backward kind of a computing action; nothing for a forward pass.
std::optional<Kind> backward_of(Kind kind) { return kind == Kind::forward ? std::nullopt : std::optional(kind); }

// Returns a context for a forward pass of a frozen model: nothing is recorded or counted.
Ctx without_tape(Ctx c) {
  c.tape = nullptr;
  c.max_attention_logits = {};
  c.quantization = {};
  c.routing = {};
  c.dropping = {};
  return c;
}

}  // namespace

SequenceRows Engine::sequence_rows() const {
  const int64_t rows = part_.rows() / part_.sequences;
  return {.sequences = part_.sequences, .length = part_.ranks > 1 ? part_.piece_length() : rows, .per_sequence = rows};
}

void Engine::run_passes(Ctx c, const Passes& p, const PhaseRunner::Enter& on) {
  model_->params().begin_micro_batch(p.first, p.last);
  c.max_attention_logits = max_attention_logits_;
  if (quantized_) c.quantization = quantized_->collect();
  const SequenceRows rows = sequence_rows();
  c.routing = {.statistics = routing_,
               .counts = expert_counts_,
               .running_counts = running_counts_,
               .aux_loss_scope = options_.aux_loss_scope,
               .loss_scale = head().loss_scale,
               .inv_count = head().inv_count,
               .sequence = rows.per_sequence,
               .capacity_factor = options_.expert_capacity_factor,
               .buffer_factor = options_.expert_buffer_factor,
               .least_factors = least_factors_,
               .loss_sum = scalar(offsetof(StepState, loss_sum), DType::f64)};
  if (routes_sequences()) c.routing.context_rows = p.inputs.batch.context_rows;
  c.block_inputs = p.block_inputs;
  if (p.inputs.first_row)
    c.dropping = {.state = state_,
                  .first = p.inputs.first_row,
                  .depth = options_.depth,
                  .layers = model_->config().num_hidden_layers,
                  .hidden = options_.hidden_dropout,
                  .rows = rows};
  if (p.forward) {
    on(Phase::forward);
    run_forward(c, p);
  }
  if (!p.backward) return;
  on(Phase::backward);
  if (p.backward == Kind::weight_backward) return c.run_weight_halves();
  c.tape->puts_off_weights = p.backward == Kind::input_backward;
  run_backward(c, p, on);
}

Distillation Engine::distillation(Ctx& c, const MicroInputs& inputs) {
  const TeacherOptions& o = *options_.teacher;
  Distillation d{.kind = o.loss,
                 .temperature = float(o.temperature),
                 .ce_weight = float(o.ce_weight),
                 .divergences = inputs.divergences,
                 .logits = inputs.top};
  if (!teacher_) return d;
  Ctx of_teacher = without_tape(c);
  of_teacher.sequence_parallel = false;  // each rank has the whole teacher
  d.teacher.emplace(Teacher{.params = teacher_->params(),
                            .w = teacher_->head(),
                            .b = teacher_->head_bias(),
                            .x = forward(*teacher_, of_teacher, inputs.batch, {}).keep(),
                            .softcap = float(teacher_->config().final_logit_softcapping)});
  return d;
}

void Engine::run_forward(Ctx& c, const Passes& p) {
  const ModelPart& part = stage_.part(p.chunk);
  std::optional<Distillation> distills;
  if (part.ends && this->distills())  // runs before the model's own activations are allocated
    distills.emplace(distillation(c, p.inputs));
  Var in;
  if (!part.embeds) {
    in = c.var(std::move(p.frame.in));
    p.frame.in_slot = in.slot();
  }
  Var x = forward_part(*model_, c, p.inputs.batch, options_.recompute, part, std::move(in));
  if (part.ends) {
    Classifier layer = head();
    layer.ahead_weights = p.inputs.ahead_weights;
    classifier({c, model_->params()}, std::move(x), p.inputs.batch, layer, p.inputs.losses,
               distills ? &*distills : nullptr);
    if (teacher_) {
      Ctx of_teacher = without_tape(c);
      release_head(*teacher_, of_teacher);
    }
    return;
  }
  p.frame.out_slot = x.slot();
  p.frame.out = x.keep();
}

void Engine::run_backward(Ctx& c, const Passes& p, const PhaseRunner::Enter& on) {
  const ModelPart& part = stage_.part(p.chunk);
  c.selective = options_.recompute.granularity != Recompute::Granularity::none;
  if (!part.ends) c.put(p.frame.out_slot, std::move(p.frame.out_grad));
  c.backward();
  // Streams must join within a captured graph, so with graphs this wait counts as backward.
  if (p.last && !(options_.graphs && c.device.can_capture())) on(Phase::communication);
  model_->params().join(c);
  if (!part.embeds) p.frame.in_grad = c.take(p.frame.in_slot);
  CHECK(c.tape->grads.empty(), c.tape->grads.size(), " gradients were never taken");
  if (!part.ends) return;
  c.run(ReduceSum{.out = scalar(offsetof(StepState, loss_sum), DType::f64), .x = p.inputs.losses});
  c.run(ReduceSum{.out = scalar(offsetof(StepState, targets), DType::f64), .x = p.inputs.targets});
  if (distills())
    c.run(ReduceSum{.out = scalar(offsetof(StepState, distill_sum), DType::f64), .x = p.inputs.divergences});
  if (source_sums_)
    c.run(SourceLosses{.sums = source_sums_,
                       .losses = p.inputs.losses,
                       .targets = p.inputs.batch.targets,
                       .sources = p.inputs.sources,
                       .rows = sequence_rows()});
}

// Runs one action, or forward and backward of a micro-batch if they follow each other directly.
size_t Engine::run_actions(size_t first, PhaseClock& clock) {
  const Actions& list = stage_.actions();
  const StageAction& a = list[first];
  const int number = stage_.frames().frame[first];
  MicroFrame& frame = frames_[size_t(a.chunk)][size_t(number)];
  const std::string phase = stage_.phase("micro-batch", a.chunk);
  const bool both = a.kind == Kind::forward && first + 1 < list.size() &&
                    list[first + 1] == StageAction{Kind::backward, a.chunk, a.micro_batch};
  const size_t last = first + (both ? 1 : 0);
  const auto in_frame = [&](auto&& run) {
    if (!frame.open)
      arena_.begin(phase, number);
    else if (!frame.entered)
      arena_.resume(phase, number);
    frame.open = frame.entered = true;
    run();
    if (stage_.frames().ends[last]) {
      frame = {};
      arena_.end();
    } else if (stage_.leaves(last)) {
      frame.entered = false;
      arena_.pause();
    }
  };
  if (!computes(a)) {
    enter(Phase::communication, clock);
    FrameTensors& tensors = frame_tensors_[size_t(a.chunk)][size_t(number)];
    if (replays())
      replay_transfer(a, tensors);
    else
      in_frame([&] { run_transfer(context(*ops_, &frame.tape), a, frame, tensors); });
    return last + 1;
  }
  const std::optional<Kind> backward = backward_of(both ? Kind::backward : a.kind);
  const Passes passes{.chunk = a.chunk,
                      .frame = frame,
                      .inputs = micro_inputs_[size_t(stage_.frames().slot[first])],
                      .forward = a.kind == Kind::forward,
                      .backward = backward,
                      .block_inputs = block_inputs(a.chunk, number),
                      .first = a.micro_batch == 0 && model_->params().has_host_units(),
                      .last = backward == Kind::backward && a.micro_batch + 1 == step_micro_batches_ &&
                              model_->params().reduces_early(backend_.mesh)};
  PhaseRunner& runner = micro_runners_[{a.chunk, number, stage_.frames().slot[first], passes.forward, passes.backward,
                                        passes.first, passes.last}];
  const auto body = [&](const PhaseRunner::Enter& on) {
    in_frame([&] { run_passes(context(*ops_, &frame.tape), passes, on); });
  };
  runner.run(
      backend_.device, options_.graphs, body, [&](Phase p) { enter(p, clock); }, replays());
  return last + 1;
}

// Transfers run between captured graphs, so they use tensors of the frame, whose addresses do not change.
void Engine::run_transfer(Ctx c, const StageAction& a, MicroFrame& frame, FrameTensors& tensors) {
  switch (a.kind) {
    case Kind::receive_activation:
      frame.in = receive(c, a, "received activations");
      tensors.in = frame.in.t;
      return;
    case Kind::receive_gradient:
      frame.out_grad = receive(c, a, "received gradients");
      tensors.out_grad = frame.out_grad.t;
      return;
    case Kind::send_activation:
      tensors.out = frame.out.t;
      send_to_stage(a, frame.out.t);
      frame.out = {};
      return;
    case Kind::send_gradient:
      tensors.in_grad = frame.in_grad.t;
      send_to_stage(a, frame.in_grad.t);
      frame.in_grad = {};
      return;
    default:
      CHECK(false, a, " is no transfer");
  }
}

void Engine::replay_transfer(const StageAction& a, const FrameTensors& tensors) {
  const bool gradient = a.kind == Kind::receive_gradient || a.kind == Kind::send_gradient;
  if (receives(a))
    links_.receive(a, gradient ? tensors.out_grad : tensors.in);
  else
    links_.send(a, gradient ? tensors.in_grad : tensors.out);
}

Buffer Engine::receive(Ctx& c, const StageAction& a, const char* name) {
  Buffer x = c.alloc(name, {rows_of_stream(c, part_.rows()), model_->config().hidden_size});
  if (!c.arena.recording()) links_.receive(a, x.t);
  return x;
}

void Engine::send_to_stage(const StageAction& a, const Tensor& x) {
  if (!arena_.recording()) links_.send(a, x);
}

// Dry-runs the actions of one micro-batch on a chunk.
void Engine::record_chunk(int chunk) {
  arena_.record(stage_.phase("micro-batch", chunk), stage_.frames().frames[size_t(chunk)]);
  MicroFrame frame;
  Ctx c = context(plan_, &frame.tape);
  c.tensor_sums = &micro_tensor_sums_;
  c.context_sums = &micro_context_sums_;
  c.expert_sums = &micro_expert_sums_;
  c.context_passes = &micro_context_passes_;
  c.unit_traffic = &unit_traffic_;
  UnitTraffic::Copied forward;
  for (const Kind kind : kKinds) {
    const StageAction a{kind, chunk, 0};
    if (std::ranges::find(stage_.actions(), a) == stage_.actions().end()) continue;
    if (computes(a))
      run_passes(c,
                 {.chunk = chunk,
                  .frame = frame,
                  .inputs = micro_inputs_.front(),
                  .forward = kind == Kind::forward,
                  .backward = backward_of(kind),
                  .block_inputs = block_inputs(chunk, 0),
                  .first = true,
                  .last = false},
                 [](Phase) {});
    else
      run_transfer(c, a, frame, frame_tensors_[size_t(chunk)].front());
    if (kind == Kind::forward) forward = std::exchange(unit_traffic_.forward, {});
    if (stage_.ever_leaves(chunk, kind)) arena_.pause();
  }
  arena_.finish_recording();
  unit_traffic_.backward = std::exchange(unit_traffic_.forward, forward);
}

// Sums over ranks with different batches, over stages (only the last one has counted) and over workers. Tensor-parallel
// ranks have equal sums already.
void Engine::add_over_batches(Ctx& c, const Tensor& sums) {
  const ProcessMesh& mesh = backend_.mesh;
  for (Communicator* group : {&mesh.data_parallel(), &mesh.stages(), &mesh.workers()})
    if (group->size() > 1) c.all_reduce(*group, sums);
}

// Sums over stages: each stage has counted its blocks' gradients and its ranks' requests; only the last stage has
// losses.
void Engine::agree_among_stages(Ctx& c) {
  Communicator& stages = backend_.mesh.stages();
  Tensor sums = scalar(offsetof(StepState, loss_sum), DType::f64);
  static_assert(offsetof(StepState, targets) == offsetof(StepState, loss_sum) + sizeof(double));
  static_assert(offsetof(StepState, requests) == offsetof(StepState, targets) + sizeof(double));
  sums.shape = {2 + kRequestSums};
  c.all_reduce(stages, sums);
  c.all_reduce(stages, scalar(offsetof(StepState, norm_sq), DType::f64));
}

}  // namespace athanor
