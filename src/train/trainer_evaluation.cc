// Evaluations of a run: when they are due, and how an interrupted one is made up. An evaluation that is due is owed
// until it is complete: a run that is stopped earlier ends with Exit::requeue, and the next start evaluates first.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <map>
#include <string>

#include "base/format.h"
#include "base/log.h"
#include "metrics/jsonl.h"
#include "train/trainer.h"

namespace athanor {
namespace {

using Seconds = std::chrono::duration<double>;
namespace fs = std::filesystem;

// True if a checkpoint's folder is in the run's folder, however the two paths are spelled.
bool lies_in(const std::string& checkpoint, const std::string& run) {
  std::error_code none;
  fs::path path = fs::absolute(checkpoint, none).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // for a path that ends with a slash
  return fs::equivalent(path.parent_path(), run, none);
}

}  // namespace

bool Trainer::eval_due(int64_t step) const {
  return (valid_ || !questions_.empty()) && config_.eval_interval > 0 &&
         (step == config_.train_iters || step % config_.eval_interval == 0);
}

// Makes up the evaluation of a run that was stopped between a step and the end of its evaluation.
void Trainer::make_up_evaluation(const Resume& resume) {
  if (state_.step == 0 || !eval_due(state_.step)) return;
  const bool looks = backend_.mesh.world().rank() == 0 && lies_in(resume.folder, config_.save);
  const auto made =
      looks ? evaluations_after(config_.save + "/metrics.jsonl", state_.step) : std::map<std::string, double>{};
  const auto missing = [&](const char* set) { return of_any(looks && !made.contains(set)); };
  owed_ = {.valid = valid_ && missing("valid"), .choices = !questions_.empty() && missing("choices")};
  const auto valid = made.find("valid");
  if (of_any(valid != made.end())) {  // a program that ended unexpectedly may not have saved that its loss was reached
    double loss = valid == made.end() ? 0 : valid->second;
    if (backend_.control) backend_.control->all_reduce({&loss, DType::f64, {1}}, Reduce::sum, Stream::compute);
    note_loss(loss);
  }
  if (!owed_.any()) return;
  if (looks)
    log::info("the evaluation after step ", state_.step, ", which an earlier start did not finish, is repeated");
  making_up_ = true;
  evaluate();
  making_up_ = false;
  if (failed_) end_with_failure();
}

void Trainer::evaluate() {
  const PhaseScope phase(clock_, Phase::eval);
  const auto begin = PhaseClock::Clock::now();
  doing(Activity::evaluation);
  const bool averages = engine_->has_averages();
  if (averages) engine_->use_averages();
  evaluate_weights();
  if (averages) engine_->use_weights();
  if (!owed_.any() || failed_) return;
  const double seconds = Seconds(PhaseClock::Clock::now() - begin).count();
  const std::string again = making_up_
                                ? ". An earlier start had already been interrupted in it: the run makes no progress "
                                  "until one start finishes it: give a start more time, or lower eval_iters"
                                : "";
  metrics_.event({.kind = EventKind::warn,
                  .step = state_.step,
                  .text = cat("the evaluation after step ", state_.step, " was interrupted after ",
                              format_duration(seconds), "; the next start repeats it", again)});
}

bool Trainer::finds_overflow(const std::string& where) {
  const std::vector<double> least = engine_->least_buffer_factors();
  const auto most = std::ranges::max_element(least);
  if (most == least.end() || *most == 0) return false;
  const auto layers = std::ranges::count_if(least, [](double factor) { return factor > 0; });
  const double enough = std::ceil(*most * 100 * (1 - 1e-12)) / 100;
  failure_.emplace(
      cat(where, ": moe.expert_buffer_factor: expected at least ", enough, " for the routing of this step, got ",
          config_.expert_buffer_factor, "; in ", layers, layers == 1 ? " layer" : " layers", " (most in layer ",
          most - least.begin(),
          ") a rank had more choices for another rank's experts than slots. The weights were not changed: go "
          "on from the last checkpoint with a larger factor, or with 0 for room for any routing"));
  return true;
}

void Trainer::evaluate_weights() {
  if (owed_.valid) evaluate_windows();
  if (!owed_.valid && owed_.choices) answer_questions();
}

void Trainer::evaluate_windows() {
  const auto begin = PhaseClock::Clock::now();
  const EvalResult result = athanor::evaluate(*engine_, *valid_,
                                              {.samples = config_.eval_iters * config_.global_batch_size,
                                               .packing = packing_,
                                               .token_bytes = token_bytes_,
                                               .stop = [this] { return asked_to_stop(); }},
                                              backend_.control);
  failed_ = !result.failure.empty();
  if (result.failed_here) failure_.emplace(cat("evaluation: ", result.failure));
  if (result.stopped || failed_) return;
  failed_ = finds_overflow(cat("evaluation after step ", state_.step));
  if (failed_) return;
  owed_.valid = false;
  note_loss(result.loss);
  const double seconds = Seconds(PhaseClock::Clock::now() - begin).count();
  for (const SourceLoss& s : result.sources)
    metrics_.eval({.step = state_.step,
                   .name = cat(kOneSource, source_name(config_.valid_data[size_t(s.source)])),
                   .loss = s.loss,
                   .loss_error = s.loss_error,
                   .bits_per_byte = s.bits_per_byte,
                   .tokens = s.tokens,
                   .windows = s.windows,
                   .windows_all = s.windows_all,
                   .seconds = seconds});
  metrics_.eval({.step = state_.step,
                 .loss = result.loss,
                 .loss_error = result.loss_error,
                 .bits_per_byte = result.bits_per_byte(),
                 .accuracy = result.accuracy,
                 .tokens = result.tokens,
                 .windows = result.windows,
                 .windows_all = result.windows_all,
                 .seconds = seconds});
}

void Trainer::note_loss(double loss) {
  if (!(loss <= config_.stop_at_loss) || state_.reached_loss == loss) return;
  state_.reached_loss = loss;
  last_saved_step_ = -1;  // the saved checkpoint of this step may lack reached_loss
}

void Trainer::answer_questions() {
  const auto begin = PhaseClock::Clock::now();
  const ChoiceScores scores =
      score(*engine_, questions_, {.stop = [this] { return asked_to_stop(); }, .control = backend_.control});
  if (scores.empty()) return;
  failed_ = finds_overflow(cat("questions after step ", state_.step));
  if (failed_) return;
  owed_.choices = false;
  const ChoiceResult result = grade(questions_, scores);
  metrics_.eval({.step = state_.step,
                 .name = "choices",
                 .loss = result.loss,
                 .accuracy = result.accuracy,
                 .accuracy_norm = result.accuracy_per_character,
                 .tokens = result.tokens,
                 .seconds = Seconds(PhaseClock::Clock::now() - begin).count()});
}

}  // namespace athanor
