// Saves of a run: to the save folder, and to memory.
#include <cmath>
#include <utility>

#include "base/checksum.h"
#include "base/format.h"
#include "base/log.h"
#include "comm/texts.h"
#include "train/trainer.h"

namespace athanor {

// Collective: all ranks make the same calls and the same decisions.
bool Trainer::save(const char* why, Wait wait, Health health) {
  requests_.save = false;
  if (config_.save.empty()) return true;
  const PhaseScope phase(clock_, Phase::checkpoint);
  doing(Activity::saving);
  if (wait == Wait::durable) settle_save();
  bool diverged = false;
  if (of_any(last_saved_step_ != state_.step)) {
    diverged = health == Health::diverged || has_diverged();
    // While steps are being skipped the next one may fail, too, so the older checkpoint is kept. Skipped steps do not
    // change the weights.
    save_put_off_ = wait == Wait::no && (diverged || is_skipping());
    if (save_put_off_) return !diverged;
    begin_save(why, diverged);
  }
  if (wait == Wait::no && saves_in_background(config_, backend_.device)) return true;
  settle_save();
  if (wait == Wait::durable && of_any(last_saved_step_ != state_.step)) leave_with(save_failure_);
  return !diverged;
}

void Trainer::begin_save(const char* why, bool diverged) {
  settle_save();
  if (diverged)
    log::error("the weights after step ", state_.step, " have diverged: they are saved as ",
               diverged_folder(state_.step), ", and the same command resumes from the checkpoint before it");
  read_engine_state();
  CheckpointOptions options = checkpoint_options();
  options.diverged = diverged;
  last_save_ = PhaseClock::Clock::now();
  last_saved_step_ = state_.step;
  retry_save_.reset();
  requests_.writing = true;  // until a step reports that no rank is writing
  checkpointer_->begin(state_, why, save_extras(), std::move(options), !is_skipping());
  report_save();
}

// Reads what a checkpoint needs of the engine's state besides its tensors.
void Trainer::read_engine_state() {
  if (engine_->looks_for_spikes()) state_.window = engine_->read_window();
  state_.in_flight = engine_->in_flight();
  count_quantized();
  count_routing();
}

CheckpointOptions Trainer::checkpoint_options() const {
  CheckpointOptions options;
  options.program_version = options_.program.version;
  options.program_commit = options_.commit;
  options.config_hash = xxh3_hex(dump_resolved(config_));
  options.data_fingerprint = train_.fingerprint(state_.consumed_samples);
  return options;
}

SaveExtras Trainer::save_extras() const {
  const bool bf16_masters = config_.master_weights == MasterWeights::bf16 && config_.local_steps == 0;
  return {.resolved_config = dump_resolved(config_),
          .hf_config = hf_config_json(config_.model, bf16_masters ? "bfloat16" : "float32"),
          .tuning = backend_.tuning ? backend_.tuning->export_choices() : "",
          .adapter = adapter_,
          .files = tokenizer_};
}

// A step with finite gradients can produce weights whose loss is not finite: evaluates the last micro-batch once more.
// The new weights may route more choices to a rank than its buffers take; that must not stop the steps after the save.
bool Trainer::has_diverged() {
  const double loss = engine_->evaluate(last_tokens_, last_targets_);
  engine_->discard_overflows();
  return of_any(!std::isfinite(loss));
}

void Trainer::settle_save() {
  checkpointer_->finish();
  report_save();
}

void Trainer::follow_save() {
  if (!checkpointer_) return;
  if (checkpointer_->writing() && (backend_.control ? !requests_.writing : checkpointer_->part_is_written())) {
    const PhaseScope phase(clock_, Phase::checkpoint);
    checkpointer_->collect();
  }
  report_save();
}

void Trainer::report_save() {
  if (const std::optional<FailedSave> failed = checkpointer_->take_failed()) {
    // Retries after 10 s, or 10 times the duration of the attempt, so that retries do not block training.
    const double seconds = std::max(10.0, 10 * failed->seconds);
    if (last_saved_step_ == failed->step) last_saved_step_ = -1;
    retry_save_ = PhaseClock::Clock::now() +
                  std::chrono::duration_cast<PhaseClock::Clock::duration>(std::chrono::duration<double>(seconds));
    save_failure_.reset();
    if (failed->here) save_failure_.emplace(cat("checkpoint: ", failed->why));
    metrics_.event({.kind = EventKind::warn,
                    .step = failed->step,
                    .text = cat("the checkpoint was not written, training continues without it: ", failed->why),
                    .seconds = failed->seconds});
  }
  const std::optional<SavedCheckpoint> saved = checkpointer_->take_saved();
  if (!saved) return;
  on_disk_.reset();
  save_seconds_ = saved->seconds;
  if (options_.on_checkpoint && backend_.mesh.world().rank() == 0) options_.on_checkpoint(saved->step);
  metrics_.event({.kind = EventKind::checkpoint,
                  .step = saved->step,
                  .text = cat(saved->folder, " (", saved->why, ")"),
                  .seconds = saved->seconds,
                  .stall_seconds = saved->stall_seconds,
                  .bytes = uint64_t(saved->bytes)});
}

std::string Trainer::newest_before_trouble(const Verify& verify) const {
  std::vector<CheckpointInfo> all = list_checkpoints(config_.save);
  for (auto c = all.rbegin(); c != all.rend(); ++c) {
    const bool of_this_run = !c->given_up && c->serial > state_.foreign_serial && c->step <= state_.step;
    if (!of_this_run || !verify(c->path).ok) continue;
    const StepState then = read_run_state(c->path).device;
    if (then.skipped_in_row == 0 && then.spikes_in_row == 0) return c->path;
  }
  return "";
}

// Finds the folder for checkpoints in memory, and in it one that is newer than those on disk. Returns its path on this
// machine; "": none.
std::string Trainer::folder_in_memory() {
  if (config_.memory_interval == 0) return "";
  memory_.emplace(memory_folder(config_.memory_folder, config_.save), backend_.control);
  std::string folder =
      memory_->find(disk_state_from_json(shared(to_json(lock_ ? disk_state(config_.save) : DiskState{}))));
  const bool newest = config_.load == "auto" && config_.load_step < 0;
  if (!folder.empty() && shared(newest || was_done_before(folder) ? "yes" : "").empty()) folder.clear();
  if (folder.empty()) memory_->keep_only(-1);
  return folder;
}

void Trainer::start_saving_to_memory() {
  const int64_t bytes = tensor_bytes(engine_->model().params());
  memory_->require_room(bytes);
  memory_checkpointer_ = std::make_unique<Checkpointer>(
      *engine_, backend_.device,
      CheckpointerOptions{.root = memory_->root(),
                          .lock = memory_->lock(),
                          .control = backend_.control,
                          .written = [this](const std::string& folder) { memory_->copy_to_next_machine(folder); }});
  if (backend_.mesh.world().rank() == 0)
    log::info("checkpoint.memory_interval: every ", config_.memory_interval, " steps a checkpoint of ",
              format_bytes(uint64_t(bytes)), " in ", memory_->root(),
              memory_->machines() > 1
                  ? cat(", divided among ", memory_->machines(), " machines, each with a copy on the next one")
                  : "");
}

bool Trainer::memory_save_due(int64_t step) const {
  return memory_ && step % config_.memory_interval == 0 && step < config_.train_iters;
}

// A checkpoint on disk of the same step serves as well. While steps are being skipped the next one may fail, too, so
// the older checkpoint is kept.
void Trainer::save_to_memory() {
  if (of_any(last_saved_step_ == state_.step) || is_skipping()) return;
  const PhaseScope phase(clock_, Phase::checkpoint);
  doing(Activity::saving);
  read_engine_state();
  if (lock_ && !(on_disk_ && on_disk_->known())) on_disk_ = disk_state(config_.save);
  DiskState disk = on_disk_.value_or(DiskState{});
  if (checkpointer_->under_way()) disk.saving_step = last_saved_step_;
  RunState state = state_;
  if (backend_.control) state = parse_state(shared(state_json(state_)), "state of rank 0");
  SaveExtras extras = save_extras();
  extras.files.push_back({kDiskStateFile, shared(to_json(disk))});
  memory_checkpointer_->begin(state, "memory", std::move(extras), checkpoint_options());
  memory_checkpointer_->finish();
  if (const std::optional<FailedSave> failed = memory_checkpointer_->take_failed())
    return metrics_.event({.kind = EventKind::warn,
                           .step = failed->step,
                           .text = cat("the checkpoint in memory was not written, training continues: ", failed->why),
                           .seconds = failed->seconds});
  if (memory_checkpointer_->take_saved()) memory_->keep_only(state_.step);
  if (options_.on_checkpoint && backend_.mesh.world().rank() == 0) options_.on_checkpoint(state_.step);
}

}  // namespace athanor
