// Starts a run: checks everything that can be checked before the first step.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <utility>

#include "base/checksum.h"
#include "base/file.h"
#include "base/format.h"
#include "comm/texts.h"
#include "metrics/console.h"
#include "metrics/jsonl.h"
#include "metrics/tensorboard.h"
#include "ops/step_control.h"
#include "tokenizer/load.h"
#include "tokenizer/token_bytes.h"
#include "train/advice.h"
#include "train/disk_need.h"
#include "train/distillation.h"
#include "train/find_together.h"
#include "train/masked_sample.h"
#include "train/trainer.h"

namespace athanor {
namespace {

// Keys that may differ between ranks.
constexpr std::string_view kOwnKeys[] = {"threads",       "memory_limit_gib",        "offload.host_memory_limit_gib",
                                         "logging.level", "logging.progress",        "tuning_cache",
                                         "profile",       "checkpoint.memory_folder"};
constexpr int64_t kMaxConfigBytes = 1 << 20, kMaxTuningBytes = 16 << 20;

EventRecord with_plan(EventRecord event, const MemoryPlan& plan, double peak_flops) {
  event.peak_tflops = peak_flops / 1e12;
  const auto bytes = [&](MemoryKind kind) { return int64_t(plan.total(kind)); };
  event.planned_weights = bytes(MemoryKind::weights);
  event.planned_masters = bytes(MemoryKind::masters);
  event.planned_gradients = bytes(MemoryKind::gradients);
  event.planned_optimizer = bytes(MemoryKind::optimizer);
  event.planned_activations = bytes(MemoryKind::activations);
  event.planned_inputs = bytes(MemoryKind::inputs);
  event.planned_constants = bytes(MemoryKind::constants);
  return event;
}

// Returns the first line of `a` that differs from the same line of `b`.
std::string first_difference(const std::string& a, const std::string& b) {
  std::istringstream x(a), y(b);
  std::string of_a, of_b;
  while (std::getline(x, of_a)) {
    if (!std::getline(y, of_b)) of_b.clear();
    if (of_a == of_b) continue;
    const size_t begin = std::min(of_a.find_first_not_of(' '), of_a.size());
    return of_a.substr(begin, of_a.find_last_not_of(',') + 1 - begin);
  }
  return "nothing there";
}

std::string workers_words(const Config& c, int64_t workers) {
  if (workers == 0) return "";
  if (c.local_steps > 0)
    return cat(workers, " workers in rounds of ", c.local_steps, " steps, ",
               c.outer_delay > 0 ? cat("outer steps ", c.outer_delay, " later, ") : "",
               c.outer_delta_dtype == DeltaDtype::fp4 ? "deltas in 4 bits, " : "");
  return cat(workers, workers == 1 ? " worker" : " workers", " with compressed momentum after step ", c.freeze_step,
             ", ");
}

}  // namespace

Trainer::Trainer(Config config, Backend backend, TrainerOptions options)
    : config_(std::move(config)),
      backend_(backend),
      options_(std::move(options)),
      train_(with_context("train_data", [&] { return open_training_data(config_); })),
      packing_(packing_options(config_, train_)),
      teacher_logits_(open_teacher_logits(config_, train_, packing_)),
      stop_(options_.stop),
      started_(PhaseClock::Clock::now()),
      last_save_(started_) {
  if (!config_.valid_data.empty()) {
    valid_ = with_context("valid_data", [&] { return open_dataset(config_.valid_data, config_); });
    if (packing_.needs_documents() && packing_.eod_id < 0)  // train_data has indices, valid_data may have none
      packing_.eod_id = with_context("valid_data", [&] { return packing_options(config_, *valid_).eod_id; });
    token_bytes_ = bytes_of_tokens(find_tokenizer(valid_->first_shard()).get(), config_.model.vocab_size);
  }
  const bool first = backend_.mesh.world().rank() == 0;
  if (first && (config_.packing == Packing::best_fit || !config_.train_data_stages.empty()))
    log::info("train_data: ", train_.description());
  if (first && !config_.train_data_stages.empty()) log::info("train_data: ", epochs_of_sources(config_, train_));
  for (const std::string& doubt : first ? train_.doubts() : std::vector<std::string>())
    log::warn("train_data: ", doubt);
  for (const std::string& doubt : first&& valid_ ? valid_->doubts() : std::vector<std::string>())
    log::warn("valid_data: ", doubt);
  if (const std::string both = first && valid_ ? train_.first_shared_shard(*valid_) : ""; !both.empty())
    log::warn("valid_data: ", both, " is in train_data too: the validation loss says nothing about unseen text");
  for (const Dataset* data : {&train_, valid_ && first ? &*valid_ : nullptr}) {
    const std::string other = data && first ? data->first_of_other_tokenizer(train_.first_shard()) : "";
    if (!other.empty())
      log::warn(data == &train_ ? "train_data: " : "valid_data: ", other, " and ", train_.first_shard(),
                " have different tokenizers in their folders, so that one token may mean two texts; tokenize all data "
                "with one tokenizer");
  }
  if (!config_.save.empty()) tokenizer_ = tokenizer_files_of(train_.first_shard());
  if (!config_.multiple_choice_data.empty()) {
    const auto tokenizer = find_tokenizer(train_.first_shard());
    if (!tokenizer)
      throw Error(cat("multiple_choice_data: expected a tokenizer next to ", train_.first_shard(),
                      ", found none; put it there, or leave multiple_choice_data out"),
                  Exit::usage);
    questions_ = read_questions(config_.multiple_choice_data, *tokenizer,
                                {.seq_length = config_.seq_length, .vocab_size = config_.model.vocab_size});
  }
}

Trainer::~Trainer() = default;

std::string Trainer::shared(const std::string& text) {
  return backend_.control ? share_text(*backend_.control, text) : text;
}

void Trainer::require_common_start() {
  const auto require = [&](const std::string& what, const std::string& mine) {
    const std::string theirs = shared(mine);
    if (mine != theirs)
      throw Error(cat("the ranks have different ", what, ": rank 0 has ", first_difference(theirs, mine), ", rank ",
                      backend_.mesh.world().rank(), " has ", first_difference(mine, theirs),
                      "; start all with the same program, configuration and data"),
                  Exit::usage);
  };
  require("programs", options_.program.version);
  require("configurations", dump_lines(config_, kOwnKeys));
  require("train_data", train_.fingerprint());
  if (valid_) require("valid_data", valid_->fingerprint());
  if (teacher_logits_) require("distillation.teacher_logits", teacher_logits_->info().text());
  if (!config_.multiple_choice_data.empty()) require("multiple_choice_data", fingerprint(questions_));
  if (backend_.control) backend_.control->barrier();  // rank 0 writes only after all ranks have checked
}

// Opens the run folder on rank 0, the only rank that writes and reports.
void Trainer::open_run() {
  if (backend_.mesh.world().rank() != 0) return;
  metrics_.add(std::make_unique<ConsoleSink>(
      ConsoleOptions{.log_interval = config_.log_interval, .progress = config_.progress}));
  if (config_.save.empty()) return;
  const std::string& run = config_.save;
  lock_.emplace(run);
  if (config_.log_jsonl) metrics_.add(std::make_unique<JsonlSink>(run + "/metrics.jsonl"));
  if (config_.tensorboard) metrics_.add(std::make_unique<TensorboardSink>(run + "/tensorboard"));
  try {
    write_environment(find_environment(options_.program), run + "/environment.json");
  } catch (const Error& e) {  // the file is only informative
    log::warn("environment.json was not written, training continues: ", e.what());
  }
}

std::optional<Trainer::Resume> Trainer::find_resume() {
  std::string folder = folder_in_memory();
  const bool in_memory = !folder.empty();
  if (!in_memory)
    folder = find_together(backend_.control, [this](const Verify& verify) { return resume_folder(verify); });
  if (folder.empty()) return std::nullopt;
  Resume resume{.folder = folder, .state = read_run_state(folder), .branch = std::nullopt, .in_memory = in_memory};
  check_resume(resume);
  return resume;
}

std::string Trainer::resume_folder(const Verify& verify) const {
  if (config_.load == "auto" && config_.load_step < 0) {
    if (config_.save.empty()) return "";
    std::vector<std::string> skipped;
    const auto newest = newest_valid(config_.save, &skipped, verify);
    for (const std::string& why : skipped) log::warn("checkpoint skipped: ", why);
    return newest ? newest->path : "";
  }
  const auto newest = config_.save.empty() ? std::nullopt : newest_valid(config_.save, nullptr, verify_sizes);
  if (newest && was_done_before(newest->path)) {
    log::info(
        "load: `load` and `load_step` took effect at an earlier start of this run; it continues from its newest "
        "checkpoint, ",
        newest->path);
    return checkpoint_at(newest->path, verify);
  }
  if (config_.load == "none") return "";
  const std::string& from = config_.load == "auto" ? config_.save : config_.load;
  return checkpoint_at(config_.load_step >= 0 ? cat(from, "/", step_folder(config_.load_step)) : from, verify);
}

// True if the rollback requested by `load` or `load_step` was already done. When the same command is started again
// (after exit code 85, by a batch system, by hand), it must not roll back once more: a run is determined by its
// configuration, so it would only repeat what is saved. With `load` none the run starts from scratch, unless Slurm has
// requeued the job, or `athanor launch` or torchrun has restarted the ranks.
bool Trainer::was_done_before(const std::string& folder) const {
  const auto restarted = [](const char* variable) {
    const char* count = std::getenv(variable);
    return count && std::string_view(count) != "0" && *count;
  };
  if (config_.load == "none" && !restarted("SLURM_RESTART_COUNT") && !restarted("TORCHELASTIC_RESTART_COUNT"))
    return false;
  try {
    const auto changes = resume_changes(read_file(folder + "/config.resolved.json", kMaxConfigBytes), config_);
    return std::ranges::none_of(changes, [](const ConfigChange& c) {
      return c.rule != OnResume::free || c.key == "load" || c.key == "load_step";
    });
  } catch (const Error&) {
    return false;  // not written by this program
  }
}

// Makes this run's checkpoint the newest one of the save folder: at once if the run returns to one of the folder's
// checkpoints; else with its first save.
void Trainer::leave_other_branch(const std::optional<Resume>& resume) {
  if (!lock_ || (resume && resume->in_memory)) return;  // one in memory continues the newest on disk
  begin_without_memory(config_.save, config_.memory_interval > 0);
  const std::vector<CheckpointInfo> all = list_checkpoints(config_.save);
  const auto is_resumed = [&](const CheckpointInfo& info) {
    std::error_code none;
    return resume && std::filesystem::equivalent(info.path, resume->folder, none);
  };
  const auto here = std::ranges::find_if(all, is_resumed);
  if (here == all.end())
    state_.foreign_serial = all.empty() ? -1 : std::ranges::max(all, {}, &CheckpointInfo::serial).serial;
  if (all.empty() || is_resumed(all.back()) || (config_.load == "auto" && config_.load_step < 0)) return;
  if (here == all.end())
    return log::warn("save: ", config_.save, " holds checkpoints of an earlier run, the newest of them ",
                     all.back().path,
                     "; once this run has saved, the folder resumes from its checkpoints; use another `save` folder to "
                     "keep both runs");
  make_newest(*lock_, *here);
  log::warn("load: the run goes back from ", all.back().path, " to ", here->path,
            " and continues from there; the later checkpoints stay until checkpoint.keep_latest_k removes them, and "
            "--load with the folder of one resumes it");
}

void Trainer::check_resume(Resume& resume) {
  const Manifest manifest = read_manifest(resume.folder);
  const int64_t workers = copies_are_workers(config_) ? backend_.mesh.workers().size() : 0;
  std::string refused;
  const auto changes = resume_changes(read_file(resume.folder + "/config.resolved.json", kMaxConfigBytes), config_);
  for (const ConfigChange& c : changes) {
    resume.prunes_anew = resume.prunes_anew || (c.key == "pruning.mask_from" && !config_.prune_mask_from.empty());
    if (c.key == "schedule.lr_decay_iters")
      resume.branch = RunBranch{.step = resume.state.step,
                                .parent = resume.folder,
                                .parent_config = manifest.config_hash,
                                .old_decay_iters = std::stoll(c.old_value),
                                .new_decay_iters = config_.lr_decay_iters};
    const std::string text = cat(c.key, ": ", c.old_value, " -> ", c.new_value);
    if (c.rule == OnResume::refused) refused += cat("\n  ", text);
    if (c.rule == OnResume::notice) log::info("changed on resume: ", text);
  }
  if (!refused.empty())
    throw Error(cat("resume: ", resume.folder, " was made with other values, which cannot change:", refused,
                    "\nset them back, or start again with --load none and another `save` folder"),
                Exit::usage);
  require_same_workers(resume.state, workers, resume.folder);
  const auto same = [](const TokenizerFile& a, const TokenizerFile& b) {
    return a.name == b.name && a.content == b.content;
  };
  const bool tells = backend_.mesh.world().rank() == 0;
  if (tells && !tokenizer_.empty()) {
    const std::vector<TokenizerFile> before = tokenizer_files_of(resume.folder + "/" + kManifestName);
    if (!before.empty() && !std::equal(before.begin(), before.end(), tokenizer_.begin(), tokenizer_.end(), same))
      log::warn("the tokenizer next to ", train_.first_shard(), " differs from that in ", resume.folder,
                ": checkpoints hold the new one from here on");
  }
  const std::string& was = manifest.data_fingerprint;
  const std::string& is = train_.fingerprint(resume.state.consumed_samples);
  if (was != is) {
    const std::string text =
        cat("train_data is not what ", resume.folder, " was trained on (fingerprint ", was, ", now ", is, ")");
    if (!options_.allow_changed_data)
      throw Error(cat("resume: ", text,
                      "; restore the files, or accept another sample order from here on with --allow-changed-data"),
                  Exit::usage);
    log::warn(text);
  }
  if (tells) warn_of_rate(resume, changes);
}

// Warns that a longer run stretches the schedule: a learning rate that had already decayed would rise again.
void Trainer::warn_of_rate(const Resume& resume, const std::vector<ConfigChange>& changes) const {
  std::vector<std::string> as_before;  // all changes, since options are valid together
  bool stretched = false, scheduled = false;
  for (const ConfigChange& c : changes) {
    as_before.push_back(cat(c.key, "=", c.old_value));
    stretched = stretched || c.key == "schedule.lr_decay_iters";
    scheduled =
        scheduled || c.key == "learning_rate" || c.key == "schedule.min_lr" || c.key.starts_with("schedule.lr_");
  }
  if (!scheduled) return;
  Config before;
  try {
    before = parse_config(dump_resolved(config_), "stored configuration", "", as_before);
  } catch (const Error&) {
    return;  // an earlier version allowed a value that this one refuses
  }
  const int64_t updates = resume.state.device.updates;
  const double was = learning_rate(engine_options(before, true).schedule, updates),
               now = learning_rate(engine_options(config_, true).schedule, updates);
  constexpr double kNoticed = 1.05;
  if (now <= kNoticed * was) return;
  log::warn("resume: the learning rate of step ", resume.state.step + 1, " rises from ", was, " to ", now,
            " by the changes above, so the loss will rise first",
            stretched ? cat("; to avoid that, keep the end of the decay: --set schedule.lr_decay_iters=",
                            before.lr_decay_iters, " leaves the rate at schedule.min_lr from there on")
                      : "");
}

void Trainer::tell_what_is_ahead() const {
  const int64_t left = config_.train_iters - state_.step;
  const std::string run = config_.save.empty() ? "the run" : config_.save;
  if (left <= 0) {
    const std::string text =
        cat(run, " is at step ", state_.step, ", train_iters is ", config_.train_iters, ": nothing is left to train");
    left == 0 ? log::info(text) : log::warn(text, "; raise train_iters, or start another run with another `save`");
    return;
  }
  const double flops = flops_.causal * double(config_.global_batch_size * config_.seq_length);
  const double step = flops / peak_flops_ / double(engine_->devices()), all = step * double(left);
  constexpr double kDays = 86400, kTooLong = 2 * kDays;
  const bool too_long = backend_.device.unified() && all > kTooLong;
  const std::string text = cat("a step takes ", format_duration(step), " or more here (", format_count(flops),
                               " FLOP at the peak of ", format_count(peak_flops_ * engine_->devices()),
                               " FLOP/s; small models stay far below it, see `athanor plan`), the ", left,
                               " steps of this run ", format_duration(all), " or more");
  too_long
      ? log::warn(
            text,
            "; for a first try take a smaller model such as configs/quickstart.json, or fewer and smaller steps: --set "
            "train_iters=100 --set schedule.lr_warmup_iters=10 --set global_batch_size=8 --set save=runs/try")
      : log::info(text);
}

// A mask that hides the wrong tokens is not visible in the loss, so the text is shown.
void Trainer::show_masked_sample() const {
  if (!train_.has_loss_mask() || state_.step > 0) return;
  if (const auto tokenizer = find_tokenizer(train_.first_shard()))
    log::info(masked_sample(train_, packing_, {.seed = uint64_t(config_.seed)}, state_.consumed_samples, *tokenizer));
}

void Trainer::warn_of_full_disk() const {
  const auto free = lock_ ? free_bytes(config_.save) : std::nullopt;
  if (!free) return;
  const std::string lack = lack_of_disk(config_, {.step = state_.step,
                                                  .checkpoint_bytes = tensor_bytes(engine_->model().params()),
                                                  .existing = int64_t(list_checkpoints(config_.save).size()),
                                                  .free_bytes = *free});
  if (!lack.empty()) log::warn(lack);
}

void Trainer::start(const std::optional<Resume>& resume) {
  if (resume && config_.micro_batch_size == 0 &&
      common_batch_size(config_) % (resume->state.micro_batch_size * backend_.mesh.batches()) == 0)
    config_.micro_batch_size = resume->state.micro_batch_size;
  const std::unique_ptr<ModelFolder> from = find_weights(resume), mask = find_mask(resume);
  if (resume || from) add_settings(resume ? resume->folder : from->path());
  engine_ = make_engine(config_, backend_, true);
  std::optional<ModelFolder> teacher;
  if (!config_.teacher.empty()) teacher.emplace(find_teacher(config_, backend_));
  const int64_t multiple = backend_.device.dimension_multiple();
  for (const DimensionAdvice& advice : dimension_advice(config_.model, config_.seq_length, multiple))
    log::info(to_text(advice, multiple));
  config_.micro_batch_size = engine_->options().micro_batch_size;
  if (!config_.save.empty())
    checkpointer_ =
        std::make_unique<Checkpointer>(*engine_, backend_.device,
                                       CheckpointerOptions{.root = config_.save,
                                                           .lock = lock_ ? &*lock_ : nullptr,
                                                           .control = backend_.control,
                                                           .background = saves_in_background(config_, backend_.device),
                                                           .keep_latest = config_.keep_latest_k});
  if (memory_) start_saving_to_memory();
  tune(resume);
  const bool profiled = !config_.profile.empty() && backend_.mesh.world().rank() == 0;
  Roofline limits;
  const Recipe& recipe = engine_->options().recipe;
  if (profiled) limits.most = ceilings(backend_, recipe.compute, recipe.low_precision());  // measured before commit()
  const MemoryPlan& plan = engine_->memory();
  constexpr size_t kQuick = size_t{1} << 30;  // a larger plan takes seconds to fill
  if (plan.total() > kQuick && backend_.mesh.world().rank() == 0)
    log::info("allocating ", format_bytes(plan.total()),
              resume ? " and reading the checkpoint" : " and making the weights");
  peak_flops_ = mfu_peak(config_, backend_, engine_->options().recipe.compute, options_.most_flops);
  const size_t before = backend_.device.allocated();
  engine_->commit();
  CHECK(backend_.device.allocated() - before == plan.total(), "allocated ", backend_.device.allocated() - before,
        " bytes, planned ", plan.total());
  if (engine_->teacher()) load_weights(engine_->teacher()->params(), backend_.device, *teacher);
  const std::string size = cat(
      format_count(double(engine_->model().params().parameter_count())), " parameters, ",
      config_.lora_rank > 0 ? cat(format_count(double(engine_->model().params().trained_count())),
                                  " of them trained (lora.rank ", config_.lora_rank, "), ")
                            : "",
      config_.model.num_experts > 0
          ? cat(format_count(double(active_parameter_count(config_.model))), " of them for each token, ")
          : "",
      teacher_words(teacher ? &*teacher : nullptr, teacher_logits_.get()),
      engine_->devices() > 1 ? cat(engine_->devices(), " ranks, zero_stage ", zero_stage(config_), ", ") : "",
      config_.pipeline_parallel_size > 1 ? cat("pipeline_parallel_size ", config_.pipeline_parallel_size, ", ") : "",
      config_.tensor_parallel_size > 1 ? cat("tensor_parallel_size ", config_.tensor_parallel_size, ", ") : "",
      config_.context_parallel_size > 1 ? cat("context_parallel_size ", config_.context_parallel_size, ", ") : "",
      config_.expert_parallel_size > 1 ? cat("expert_parallel_size ", config_.expert_parallel_size, ", ") : "",
      workers_words(config_, engine_->workers()), "micro-batch ", config_.micro_batch_size, " x ",
      engine_->micro_batches(), ", plan ", format_bytes(plan.total()));
  set_weights(resume, from.get(), mask.get());
  if (resume && resume->in_memory) memory_->drop_received();
  if (resume) {
    if (resume->branch) state_.branches.push_back(*resume->branch);
    const std::string peak = choose_peak();
    metrics_.event(with_plan({.kind = EventKind::resume,
                              .step = state_.step,
                              .text = cat("from ", resume->folder, mask ? cat(", pruned as ", mask->path()) : "", "; ",
                                          size, "; ", options_.backend_description, peak.empty() ? "" : "; ", peak)},
                             plan, peak_flops_));
    if (resume->branch)
      metrics_.event({.kind = EventKind::branch,
                      .step = state_.step,
                      .text = cat("from ", resume->folder, " with schedule.lr_decay_iters ",
                                  resume->branch->new_decay_iters, " in the place of ", resume->branch->old_decay_iters,
                                  ": from here on the learning rate is not that of the parent")});
  } else {
    choose_peak();
    const std::string origin =
        cat(from ? cat("weights of ", from->path(), "; ") : "", mask ? cat("pruned as ", mask->path(), "; ") : "");
    metrics_.event(
        with_plan({.kind = EventKind::start, .step = 0, .text = cat(origin, size, "; ", options_.backend_description)},
                  plan, peak_flops_));
  }
  if (mask || (!resume && prunes_after(config_, 0))) report_pruned();
  if (config_.log_noise_scale && engine_->micro_batches() == 1)
    metrics_.event(
        {.kind = EventKind::warn,
         .step = state_.step,
         .text = cat("logging.noise_scale has no effect: a step is one micro-batch of ", config_.micro_batch_size,
                     " sequences on each rank, which leaves nothing to compare; set a smaller "
                     "micro_batch_size")});
  if (config_.zero_quantized_gradients && backend_.mesh.data_parallel().size() == 1 &&
      backend_.mesh.world().rank() == 0)
    log::warn("zero_quantized_gradients has no effect: it is for data-parallel ranks that add up their gradients");
  leave_other_branch(resume);
  state_.micro_batch_size = config_.micro_batch_size;
  state_.workers = engine_->workers();
  last_saved_step_ = resume && !resume->in_memory ? state_.step : -1;
  const auto tokens = size_t(config_.micro_batch_size * config_.seq_length);
  last_tokens_.assign(tokens, 0), last_targets_.assign(tokens, -1);
  flops_ = flops_per_token(*engine_, config_.seq_length);
  if (backend_.mesh.world().rank() == 0) tell_what_is_ahead(), show_masked_sample();
  warn_of_full_disk();
  if (lock_) write_file(config_.save + "/config.resolved.json", dump_resolved(config_));
  if (options_.sensors && backend_.mesh.world().rank() == 0)
    sensors_ = std::make_unique<SensorWatch>(*options_.sensors);
  if (profiled) {
    trace_ = std::make_unique<TraceWriter>(config_.profile);
    profile_ = std::make_unique<StepProfile>(*engine_, backend_,
                                             StepProfile::Options{.profiler = options_.profiler,
                                                                  .why_events = options_.why_no_profiler,
                                                                  .limits = limits,
                                                                  .trace = trace_.get(),
                                                                  .collectives = options_.collectives});
  }
  each_alone_ = of_any(backend_.device.unified() || profile_);  // only rank 0 has a profile
}

std::string Trainer::choose_peak() {
  const MfuPeak before = std::exchange(state_.peak, {});
  if (config_.peak_tflops > 0) return "";
  const std::string model = backend_.device.unified() ? find_environment(options_.program).cpu_model : "";
  std::string reason;
  state_.peak = settled_peak({peak_flops_, cat(backend_.device.description(), model.empty() ? "" : ", ", model)},
                             before, &reason);
  peak_flops_ = state_.peak.flops;
  return reason;
}

void Trainer::tune(const std::optional<Resume>& resume) {
  if (!backend_.tuning) return;
  if (backend_.mesh.world().rank() == 0) choose_gemms(resume);
  share_choices(backend_);
  const std::string attention = attention_words(*engine_, backend_.tuning);
  if (attention.empty()) return;
  log::info(attention);
  options_.backend_description += "; " + attention;  // appears in the first record
}

void Trainer::choose_gemms(const std::optional<Resume>& resume) {
  Tuning& tuning = *backend_.tuning;
  if (resume) {
    const std::string path = resume->folder + "/tuning.json";
    const std::string why = std::filesystem::exists(path)
                                ? tuning.import_choices(read_file(path, kMaxTuningBytes))
                                : "the checkpoint was made without choices, on another device";
    if (why.empty()) return;
    log::warn("resume: algorithms of GEMMs and attention are autotuned again, so that losses may differ in the ",
              "last bits from here on: ", why);
  }
  search_gemms(config_, *engine_, tuning);
}

}  // namespace athanor
