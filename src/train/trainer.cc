// The training loop: micro-batches, optimizer steps, evaluation, checkpoints, and a clean stop in every case.
#include "train/trainer.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/format.h"
#include "base/process_memory.h"
#include "data/loader.h"
#include "ops/step_control.h"
#include "train/find_together.h"
#include "train/routing_report.h"
#include "train/shared_folder.h"
#include "train/step_times.h"

namespace athanor {
namespace {

using Seconds = std::chrono::duration<double>;

}  // namespace

Exit Trainer::run() {
  try {
    return run_from_start();
  } catch (const Error& e) {
    if (running_ || e.code() != Exit::usage) tell_error(e.what());  // a start that was refused is not part of the run
    throw;
  } catch (const std::exception& e) {
    tell_error(e.what());
    throw;
  }
}

void Trainer::tell_error(const std::string& text) {
  metrics_.event({.kind = EventKind::error, .step = state_.step, .text = text});
}

Exit Trainer::run_from_start() {
  std::optional<Resume> resume;
  {
    const StopAtStart quick(stop_, [this](int signal) {
      metrics_.event({.kind = EventKind::signal, .step = 0, .text = ::strsignal(signal)});
      metrics_.event({.kind = EventKind::end, .step = 0, .text = "stopped before training began; start it again"});
    });
    require_common_start();
    open_run();
    if (backend_.control && !config_.save.empty()) require_shared_folder(*backend_.control, config_.save);
    resume = find_resume();
    start(resume);
    running_ = true;
  }
  apply_schedules(std::max<int64_t>(0, state_.step - 1));  // those of the last step, for a pending evaluation
  if (resume) make_up_evaluation(*resume);
  clock_.lap();
  const Exit code = loop();
  if (backend_.control) {  // the last checkpoint must be complete before the first rank leaves
    stop_.leave();
    backend_.control->barrier();
  }
  if (memory_) memory_->remove_folder();  // the newest checkpoint is on disk
  return finish(code);
}

void Trainer::open_loader() {
  step_sequences_ = batch_size_at(config_, launched_samples_);
  engine_->set_step_sequences(step_sequences_);
  std::function<int64_t(int64_t)> chunk_length;
  if (config_.total_curriculum_step > 0)
    chunk_length = [this](int64_t sample) { return chunk_length_at(config_, sample); };
  loader_ = nullptr;  // the old loader's thread must end before the next one starts
  loader_ = std::make_unique<Loader>(
      train_, LoaderOptions{.order = {.seed = uint64_t(config_.seed)},
                            .first_sample = launched_samples_,
                            .rows = config_.micro_batch_size,
                            .ranks = engine_->micro_batch_order(),
                            .packing = packing_,
                            .augmentation = augmentation(config_),
                            .teacher_logits = engine_->stage().has_head() ? teacher_logits_.get() : nullptr,
                            .chunk_length = chunk_length});
}

Exit Trainer::loop() {
  launched_samples_ = state_.consumed_samples;
  open_loader();
  bool discarded = false;
  last_progress_ = PhaseClock::Clock::now();
  while (!discarded && !ended_ && !owed_.any() && !reached_stop() && steps_left() > 0) {
    doing(Activity::step);
    discarded = !launch_step();
    while (engine_->uncollected() > 1) collect_step();
    const bool pause = discarded || pause_due(state_.step + engine_->uncollected());
    if (pause) collect_steps();
    if (pause && !discarded) end_rounds();
    follow_save();
    if (discarded) {
      engine_->discard_step();
      if (failure_) end_with_failure();
      metrics_.event({.kind = EventKind::signal, .step = state_.step, .text = "the step in progress was discarded"});
    }
    if (const bool not_finite = state_.device.skipped_in_row >= config_.max_skipped_steps; not_finite || spiking_) {
      collect_steps();
      if (roll_back()) continue;
      if (not_finite)
        log::error("diverged: ", state_.device.skipped_in_row,
                   " steps in a row had a non-finite loss or gradient; weights are those of the last good step");
      else
        log::error("diverged: ", config_.max_consecutive_spikes,
                   " steps in a row exceeded loss_spikes.zscore, and no rollback is left");
      save("diverged", Wait::durable, Health::diverged);
      return Exit::diverged;
    }
    if (pause && !discarded) {
      after_step();
      if (failed_) end_with_failure();
    }
    if (stop_signal() != 0) break;
    if (steps_left() > 0 && !reached_stop() && (backend_.control ? requests_.end : time_is_up())) {
      collect_steps();
      warn_of_short_limit();
      save("time limit", Wait::durable);
      return Exit::requeue;
    }
  }
  collect_steps();
  if (const int signal = stop_signal()) {
    metrics_.event({.kind = EventKind::signal, .step = state_.step, .text = ::strsignal(signal)});
    const bool healthy = save("stop signal", Wait::durable);
    if (steps_left() > 0) return Exit::requeue;
    if (!healthy) return Exit::diverged;
    return owed_.any() ? Exit::requeue : Exit::done;  // a requeued run makes up the evaluation
  }
  return save(reached_stop() ? "stop_at_loss" : "end of training", Wait::durable) ? Exit::done : Exit::diverged;
}

void Trainer::apply_schedules(int64_t step) {
  engine_->set_ahead_weights(ahead_weights_at(config_, step));
  const int64_t tokens = sliding_window_at(config_, step);
  if (engine_->model().config().sliding_window == tokens) return;
  engine_->set_sliding_window(tokens);
  log::info("step ", step, ": sliding_window ", tokens);
}

// Discards the steps that ranks launched after one of them had failed: these steps made no update.
void Trainer::drop_poisoned_steps() {
  while (engine_->uncollected() > 0) engine_->collect();
  launched_.clear();
}

int64_t Trainer::steps_left() const { return config_.train_iters - state_.step - engine_->uncollected(); }

void Trainer::warn_of_short_limit() {
  if (steps_done_ > 1) return;
  metrics_.event({.kind = EventKind::warn,
                  .step = state_.step,
                  .text = cat("exit_duration_in_mins ", config_.exit_duration_in_mins, " is shorter than the ",
                              format_duration(Seconds(PhaseClock::Clock::now() - started_).count()),
                              " that the start of the program, one step and its evaluation take, so that each "
                              "start makes one step: raise it, or lower eval_iters")});
}

// Saves the state after the last complete step, then throws this rank's failure, or reports that another rank failed.
void Trainer::end_with_failure() {
  try {
    save("error", Wait::durable);
  } catch (const Error& e) {
    if (e.code() == Exit::peer_lost) throw;
    log::error("the state after step ", state_.step, " could not be saved: ", e.what());
  }
  leave_with(failure_);
}

// Ends the run with an error that occurred on some ranks and of which all ranks know: these ranks throw it; the others
// wait for them, and thereby learn which rank failed.
void Trainer::leave_with(const std::optional<Error>& mine) {
  if (!mine && backend_.control) backend_.control->barrier();
  throw mine.value_or(Error("another rank failed", Exit::peer_lost));
}

void Trainer::doing(Activity activity) const {
  const bool step = activity == Activity::step;
  if (options_.doing) options_.doing(activity, state_.step + (step ? engine_->uncollected() + 1 : 0));
}

StepRequests Trainer::own_requests() const {
  const auto stop = stop_.received();
  return {.stop_signal = stop ? stop->signal : 0,
          .save = wants_to_save(),
          .end = time_is_up(),
          .writing = checkpointer_ && checkpointer_->writing() && !checkpointer_->part_is_written(),
          .failed = failure_.has_value()};
}

void Trainer::hear(const StepRequests& of_step) {
  requests_.stop_signal = std::max(requests_.stop_signal, of_step.stop_signal);
  requests_.save = requests_.save || of_step.save;
  requests_.end = requests_.end || of_step.end;
  requests_.writing = of_step.writing;
  requests_.failed = requests_.failed || of_step.failed;
}

int Trainer::stop_signal() const {
  if (backend_.control) return requests_.stop_signal;
  const auto stop = stop_.received();
  return stop ? stop->signal : 0;
}

bool Trainer::of_any(bool mine) {
  int32_t any = mine ? 1 : 0;
  if (backend_.control) backend_.control->all_reduce({&any, DType::i32, {1}}, Reduce::max, Stream::compute);
  return any != 0;
}

bool Trainer::asked_to_stop() {
  const auto stop = stop_.received();
  if (!backend_.control) return stop.has_value();
  requests_.stop_signal = std::max(requests_.stop_signal, stop ? stop->signal : 0);
  backend_.control->all_reduce({&requests_.stop_signal, DType::i32, {1}}, Reduce::max, Stream::compute);
  return requests_.stop_signal != 0;
}

bool Trainer::out_of_time(int64_t micro_left) const {
  const auto stop = stop_.received();
  if (!stop || backend_.control) return false;  // with several ranks all finish the current step
  const double used = Seconds(PhaseClock::Clock::now() - stop->when).count();
  // The host only launches work that runs later, so this assumes the average time per micro-batch, and counts queued
  // ones.
  const double micros = double(engine_->step_micro_batches());
  const double seconds = std::max(micro_seconds_, mean_step_seconds_ / micros);
  const double left = double(micro_left) + double(engine_->uncollected()) * micros;
  const double saves = checkpointer_ && checkpointer_->under_way() ? 2 : 1;
  return used + left * seconds + saves * save_seconds_ > config_.exit_signal_budget;
}

bool Trainer::launch_step() {
  // Skipped steps are no warm-up, so the last ones of the warm-up must have ended before it is known to be over.
  const auto warmed_up = [&](int64_t more) { return state_.device.updates + more >= config_.freeze_step; };
  if (!warmed_up(0) && warmed_up(engine_->uncollected())) collect_steps();
  engine_->set_compressed(warmed_up(0));
  apply_schedules(state_.step + engine_->uncollected());
  if (batch_size_at(config_, launched_samples_) != step_sequences_) open_loader();
  const int64_t micros = engine_->step_micro_batches();
  for (int64_t m = 0; m < micros; ++m) {
    if (out_of_time(micros - m)) return false;
    tell_first_step(m, micros);
    const auto begin = PhaseClock::Clock::now();
    clock_.enter(Phase::data);
    const HostBatch* next = nullptr;
    try {
      if (!failure_ && lock_ && m == 0) lock_->keep();
      if (!failure_) next = &loader_->next();
    } catch (const Error& e) {
      failure_ = e;
      if (!backend_.control) return false;
    }
    if (!next) {  // the other ranks wait for this rank's gradients
      std::fill(last_tokens_.begin(), last_tokens_.end(), 0);
      std::fill(last_targets_.begin(), last_targets_.end(), -1);
      engine_->micro_batch(last_tokens_, last_targets_, clock_);
      continue;
    }
    const HostBatch& batch = *next;
    if (batch.given_up > 0 && !std::exchange(logged_given_up_, true))
      log::warn("sample ", batch.first_sample, ": ", batch.given_up,
                " predictions are left out, since its sequences have more documents than the ", packing_.max_documents,
                " of documents.max_per_sequence (logged once)");
    set_documents(*engine_, batch);
    engine_->set_sources(batch.sources);
    engine_->set_pixels(batch.pixels);
    engine_->set_teacher_logits({batch.teacher_ids, batch.teacher_values, batch.teacher_rest});  // empty without cache
    engine_->micro_batch(batch.tokens, batch.targets, clock_);
    last_tokens_.assign(batch.tokens.begin(), batch.tokens.end());
    last_targets_.assign(batch.targets.begin(), batch.targets.end());
    micro_seconds_ = Seconds(PhaseClock::Clock::now() - begin).count();
  }
  if (failure_) engine_->poison_step();  // also poisons steps that are launched before all ranks know
  engine_->close_step(clock_, backend_.control ? to_bits(own_requests()) : 0);
  launched_.push_back({clock_.lap(), step_sequences_});
  launched_samples_ += step_sequences_;
  return true;
}

void Trainer::tell_first_step(int64_t done, int64_t micros) {
  if (mean_step_seconds_ > 0 || !backend_.device.unified() || backend_.mesh.world().rank() != 0) return;
  const auto now = PhaseClock::Clock::now();
  if (Seconds(now - last_progress_).count() < options_.first_step_seconds || done == 0) return;
  last_progress_ = now;
  log::info("step ", state_.step + 1, ": ", done, " of ", micros, " micro-batches are done, about ",
            format_duration(double(micros - done) * micro_seconds_), " left of this step");
}

void Trainer::collect_step() {
  const StepResult done = engine_->collect();
  if (backend_.control) hear(to_requests(done.requests));
  if (requests_.failed) {
    drop_poisoned_steps();
    end_with_failure();
  }
  if (!std::isfinite(done.state.loss) && finds_overflow(cat("step ", state_.step + 1))) {
    drop_poisoned_steps();
    end_with_failure();
  }
  if (profile_) profile_->end_step(double(done.times.total()) * 1e-9);
  ++state_.step, ++steps_done_;
  const LaunchedStep launched = launched_.front();
  launched_.pop_front();
  state_.consumed_samples += launched.sequences;
  const float loss_scale = std::exchange(state_.device, done.state).loss_scale;  // this step's; `done` has the next
  if (!std::isfinite(done.state.loss)) ++state_.nan_steps;
  if (std::isnan(first_step_seconds_)) first_step_seconds_ = Seconds(PhaseClock::Clock::now() - started_).count();
  spiking_ = spiking_ || (config_.rollback && done.state.spikes_in_row >= config_.max_consecutive_spikes);
  report(done, launched, loss_scale);
}

void Trainer::collect_steps() {
  while (engine_->uncollected() > 0) collect_step();
}

void Trainer::report(const StepResult& result, const LaunchedStep& launched, float loss_scale) {
  const StepState& done = result.state;
  const PhaseTimes times =
      backend_.device.unified() ? launched.host_times : step_times(result.times, launched.host_times);
  const double tokens = double(launched.sequences * config_.seq_length);
  const double seconds = double(times.total()) * 1e-9;
  mean_step_seconds_ = mean_step_seconds_ == 0 ? seconds : 0.9 * mean_step_seconds_ + 0.1 * seconds;
  const FlopCount per_token = flops_of_step(config_, flops_, state_.step - 1);
  Speed speed{.tokens_per_second = tokens / seconds, .devices = engine_->devices(), .peak_flops = peak_flops_};
  if (const double flops = utilization(per_token, speed).tflops * 1e12; flops > peak_flops_ && state_.peak.flops > 0) {
    metrics_.event({.kind = EventKind::warn,
                    .step = state_.step,
                    .text = cat("MFU refers to ", format_count(flops), "FLOP/s from here on, which this step reached; ",
                                "before to ", format_count(peak_flops_), "FLOP/s, which was measured")});
    speed.peak_flops = peak_flops_ = state_.peak.flops = flops;
  }
  const Utilization use = utilization(per_token, speed);
  StepMetrics m;
  m.step = state_.step;
  m.total_steps = config_.train_iters;
  m.consumed_samples = state_.consumed_samples;
  m.consumed_tokens = state_.consumed_samples * config_.seq_length;
  m.global_batch_size = launched.sequences;
  m.loss = done.loss / std::max(1.0, done.loss_targets);
  m.grad_norm = done.grad_norm;
  m.learning_rate = done.lr;
  m.loss_scale = loss_scale;
  m.skipped_steps = done.skipped;
  m.nan_steps = state_.nan_steps;
  m.skipped = done.skip != 0;
  set_times(m, times);
  m.tokens_per_second = tokens / seconds;
  m.tflops = use.tflops;
  m.mfu = use.mfu;
  m.mfu_full = use.mfu_full;
  m.memory_planned = engine_->memory().total();
  m.memory_used = backend_.device.unified() ? process_memory().anonymous : backend_.device.in_use();
  m.eta_seconds = double(config_.train_iters - state_.step) * mean_step_seconds_;
  read_sensors(m);
  if (engine_->looks_for_spikes()) m.spikes = done.spikes;
  if (config_.qk_clip_threshold > 0 && std::isfinite(done.max_attention_logit))
    m.max_attention_logit = done.max_attention_logit;
  if (config_.prune_sparsity > 0) m.sparsity = sparsity_after(config_, state_.step - 1);
  if (engine_->distills()) m.distill_loss = done.distill / std::max(1.0, done.loss_targets);
  m.source_losses = source_losses(config_, result.source_sums);
  if (config_.total_curriculum_step > 0)
    m.chunk_length = chunk_length_at(config_, state_.consumed_samples - launched.sequences);
  if (config_.log_noise_scale && done.skip == 0 && done.micro_norm > 0) m.noise_scale = noise_scale(done, tokens);
  const Schedule& schedule = engine_->options().schedule;
  if (schedule.style == DecayStyle::one_cycle || schedule.momentum_warmup > 0)
    m.momentum = momentum_now(config_.adam_beta1, done);
  if (schedule.weight_decay != WeightDecayStyle::constant)
    m.weight_decay = config_.weight_decay * done.weight_decay_factor;
  table_.add(times);
  metrics_.step(m);
  if (options_.on_step && !options_.on_step(m)) ended_ = true;
  if (done.spike != 0) report_spike(m, done);
}

// Returns the gradient noise scale from the averages up to this step; tokens: number of tokens in this step.
std::optional<double> Trainer::noise_scale(const StepState& done, double tokens) {
  const MicroGradients micro = engine_->micro_gradients();
  const double small = double(micro.sequences * config_.seq_length);
  const double norm = done.micro_norm * tokens / small;  // undoes the division by the tokens of the step
  state_.noise_scale.add({small, norm * norm / double(micro.count)}, {tokens, double(done.grad_norm) * done.grad_norm});
  return state_.noise_scale.tokens();
}

void Trainer::report_spike(const StepMetrics& m, const StepState& done) {
  metrics_.event(
      {.kind = EventKind::skip,
       .step = m.step,
       .text = cat("loss ", m.loss, " lies ", done.loss_deviations, " and gradient norm ", m.grad_norm, " lies ",
                   done.norm_deviations, " standard deviations above the last ", SpikeWindow::kSteps,
                   done.spike == 1 ? cat(" steps: the step was skipped, ", done.spikes_in_row, " in a row")
                                   : cat(" steps: the step was taken, after ", config_.max_consecutive_spikes,
                                         " skipped in a row"))});
}

void Trainer::read_sensors(StepMetrics& m) {
  if (!sensors_) return;
  const SensorReading now = sensors_->latest();
  m.gpu_watts = now.watts;
  m.gpu_celsius = now.celsius;
  m.gpu_sm_mhz = now.sm_mhz;
  m.gpu_memory_mhz = now.memory_mhz;
  m.gpu_throttle = now.throttle_reasons;
  const int64_t alarms = now.throttle_reasons.value_or(0) & kThrottleAlarms;
  if (const int64_t risen = alarms & ~throttle_alarms_)
    metrics_.event(
        {.kind = EventKind::warn, .step = m.step, .text = cat("GPU clocks are held down: ", throttle_text(risen))});
  throttle_alarms_ = alarms;
}

bool Trainer::save_due(int64_t step) const {
  if (config_.save_interval > 0 && step % config_.save_interval == 0) return true;
  return save_put_off_ || (backend_.control ? requests_.save : wants_to_save());
}

bool Trainer::wants_to_save() const {
  const auto now = PhaseClock::Clock::now();
  if (retry_save_ && now >= *retry_save_) return true;
  return config_.save_interval_minutes > 0 && Seconds(now - last_save_).count() > config_.save_interval_minutes * 60;
}

bool Trainer::time_is_up() const {
  return config_.exit_duration_in_mins > 0 &&
         Seconds(PhaseClock::Clock::now() - started_).count() > config_.exit_duration_in_mins * 60;
}

bool Trainer::pause_due(int64_t step) const {
  return each_alone_ || step == config_.train_iters || eval_due(step) || save_due(step) || memory_save_due(step) ||
         quantized_due(step) || routing_due(config_, step) || prunes_after(config_, step) ||
         engine_->round_ends(step) || stop_signal() != 0;
}

// After the last step also runs the outer steps of all fragments, so that the run's weights contain the updates of its
// workers.
void Trainer::end_rounds() {
  const bool last = state_.step == config_.train_iters;
  if (!last && !engine_->round_ends(state_.step)) return;
  const PhaseScope phase(clock_, Phase::communication);
  engine_->end_rounds(state_.step, last);
}

bool Trainer::quantized_due(int64_t step) const {
  const int64_t interval = config_.log_quantization_interval;
  return interval > 0 && (step == config_.train_iters || step % interval == 0);
}

// Adds the engine's quantization statistics to the run's state.
void Trainer::count_quantized() {
  for (const QuantizedOperand& q : engine_->take_quantized())
    state_.quantized[{engine_->model().params().spec(q.parameter).name, std::string(name_of(q.operand))}].add(
        q.statistics);
}

void Trainer::report_communication() {
  if (!profile_ || profile_->steps() == 0) return;
  const auto steps = double(profile_->steps());
  for (const auto& [key, row] : profile_->collectives())
    metrics_.communication({.step = state_.step,
                            .layer = key.subject,
                            .group = key.group,
                            .collective = key.kind,
                            .calls = double(row.calls) / steps,
                            .exposed_ms = row.exposed / steps * 1e3,
                            .ms = row.seconds / steps * 1e3});
}

void Trainer::report_quantized() {
  count_quantized();
  const Recipe& recipe = engine_->options().recipe;
  for (const ParamSpec& spec : engine_->model().params().specs())
    for (size_t i = 0; i < kOperands; ++i) {
      const auto operand = Operand(i);
      const auto q = state_.quantized.find({spec.name, std::string(name_of(operand))});
      if (q == state_.quantized.end()) continue;
      metrics_.quantized({.step = state_.step,
                          .layer = spec.name,
                          .operand = std::string(name_of(operand)),
                          .dtype = name_of(recipe.rule(operand).quantized),
                          .values = int64_t(q->second.values),
                          .saturated = int64_t(q->second.saturated),
                          .underflowed = int64_t(q->second.underflowed),
                          .amax = q->second.amax});
    }
  state_.quantized.clear();
}

void Trainer::count_routing() {
  if (config_.log_routing_interval > 0) add_routing(state_.routing, engine_->take_routing());
}

void Trainer::report_routing() {
  count_routing();
  const std::vector<RoutingMetrics> layers = routing_records(config_.model, state_.routing, state_.step);
  state_.routing.clear();
  for (const RoutingMetrics& layer : layers) metrics_.routing(layer);
  const std::string alarm = routing_alarm(layers, config_);
  if (!alarm.empty() && !std::exchange(state_.routing_alarm, true))
    metrics_.event({.kind = EventKind::warn, .step = state_.step, .text = alarm});
  if (alarm.empty()) state_.routing_alarm = false;
}

void Trainer::after_step() {
  if (prunes_after(config_, state_.step)) {
    engine_->prune(sparsity_after(config_, state_.step));
    report_pruned();
  }
  if (quantized_due(state_.step)) report_quantized();
  if (routing_due(config_, state_.step)) report_routing();
  if (save_due(state_.step)) save("interval", Wait::no);
  if (memory_save_due(state_.step)) save_to_memory();
  if (eval_due(state_.step)) {
    owed_ = {.valid = valid_.has_value(), .choices = !questions_.empty()};
    if (stop_signal() == 0) evaluate();
  }
  if (profile_) profile_->skip();
  table_.add(clock_.lap(), 0);
}

bool Trainer::reached_stop() const {
  return config_.stop_at_loss > 0 && state_.reached_loss && *state_.reached_loss <= config_.stop_at_loss;
}

// The counters of the run are not rolled back. An immediate save makes the rollback persistent.
bool Trainer::roll_back() {
  if (!config_.rollback || state_.rollbacks > 0) return false;
  settle_save();
  doing(Activity::loading);
  const std::string folder =
      find_together(backend_.control, [this](const Verify& verify) { return newest_before_trouble(verify); });
  if (folder.empty()) return false;
  const RunState failed = state_;
  load_state(folder);
  const int64_t left_out = failed.consumed_samples - state_.consumed_samples;
  state_.consumed_samples = failed.consumed_samples;
  state_.nan_steps = failed.nan_steps;
  state_.micro_batch_size = failed.micro_batch_size;
  state_.peak = failed.peak;
  state_.rollbacks = failed.rollbacks + 1;
  state_.branches = failed.branches;
  state_.foreign_serial = failed.foreign_serial;
  state_.device.skipped = failed.device.skipped;
  state_.device.spikes = failed.device.spikes;
  engine_->write_state(state_.device);
  engine_->take_quantized();
  engine_->take_routing();
  spiking_ = false;
  last_saved_step_ = -1;
  open_loader();
  metrics_.event({.kind = EventKind::resume,
                  .step = state_.step,
                  .text = cat("rollback from step ", failed.step, " to ", folder, "; ", left_out,
                              " sequences since then are left out")});
  save("rollback", Wait::durable);
  clock_.lap();
  return true;
}

Exit Trainer::finish(Exit code) {
  table_.add(clock_.lap(), 0);
  const double seconds = Seconds(PhaseClock::Clock::now() - started_).count();
  const int64_t tokens = state_.consumed_samples * config_.seq_length;
  std::string text = code == Exit::done      ? "done"
                     : code == Exit::requeue ? "stopped; resume with the same command"
                                             : "diverged";
  if (code == Exit::done && reached_stop())
    text += cat(": validation loss ", *state_.reached_loss, " is within stop_at_loss ", config_.stop_at_loss, " after ",
                tokens, " tokens; ", seconds, " s since the start of this program",
                std::isnan(first_step_seconds_) ? "" : cat(", ", first_step_seconds_, " s to the first step"));
  EventRecord end{.kind = EventKind::end, .step = state_.step, .text = text, .seconds = seconds, .tokens = tokens};
  if (!std::isnan(first_step_seconds_)) end.first_step_seconds = first_step_seconds_;
  report_communication();
  metrics_.event(end);
  if (const std::string table = table_.report(); !table.empty() && backend_.mesh.world().rank() == 0)
    metrics_.table(table);
  if (profile_) metrics_.table(profile_->table(profile_->step_seconds()));
  const uint64_t used = backend_.device.unified() ? process_memory().anonymous : backend_.device.in_use();
  const uint64_t planned = engine_->memory().total() + memory_outside_plan(config_, backend_.device, *engine_) -
                           (backend_.device.unified() ? memory_checkpoint_bytes(config_, *engine_) : 0);
  if (used > planned)
    log::warn("memory: this run holds ", format_bytes(used), ", more than plan and reserve (", format_bytes(planned),
              "); raise runtime_reserve_mib");
  return code;
}

}  // namespace athanor
