#include "metrics/console.h"

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/format.h"
#include "base/log.h"

namespace athanor {
namespace {

constexpr size_t kSparkline = 64;  // losses kept for the bar's sparkline

// " [2026-08-21 09:12:45]", in local time like Megatron-LM.
std::string stamp(double time) { return cat(" [", format_time(time, TimeZone::local), "]"); }

std::string z_score(double z) {
  if (!std::isfinite(z)) return "-";
  return format_text("%+.2f", z);
}

}  // namespace

void LogInterval::add(const StepMetrics& m) {
  last_ = m;
  ++steps_;
  skipped_ += m.skipped;
  nan_ += !std::isfinite(m.loss);
  if (!m.skipped && std::isfinite(m.loss)) {
    ++losses_;
    loss_ += m.loss;
    for (const auto& [name, loss] : m.source_losses) {
      const auto known = std::ranges::find(sources_, name, &SourceLoss::name);
      SourceLoss& source = known == sources_.end() ? sources_.emplace_back(SourceLoss{.name = name}) : *known;
      source.sum += loss;
      ++source.steps;
    }
  }
  step_ms_ += m.step_ms;
  data_ms_ += m.data_ms;
  tokens_ += m.tokens_per_second * m.step_ms * 1e-3;
  mfu_ms_ += m.mfu * m.step_ms;
  mfu_full_ms_ += m.mfu_full * m.step_ms;
}

// Words and formats up to "number of nan iterations" are Megatron-LM's [megatron/training/training.py, training_log],
// because scripts match them. New fields may only be appended.
std::string LogInterval::line() const {
  const double loss = losses_ > 0 ? loss_ / double(losses_) : last_.loss;
  std::string out = stamp(last_.time);
  out += format_text(" iteration %8" PRId64 "/%8" PRId64 " |", last_.step, last_.total_steps);
  out += format_text(" consumed samples: %12" PRId64 " |", last_.consumed_samples);
  out += format_text(" elapsed time per iteration (ms): %.1f |", step_ms_ / double(std::max<int64_t>(1, steps_)));
  out += format_text(" learning rate: %.6E |", last_.learning_rate);
  out += format_text(" global batch size: %5" PRId64 " |", last_.global_batch_size);
  out += format_text(" lm loss: %.6E |", loss);
  out += format_text(" loss scale: %.1f |", last_.loss_scale);
  out += format_text(" grad norm: %.3f |", last_.grad_norm);
  out += format_text(" number of skipped iterations: %3" PRId64 " |", skipped_);
  out += format_text(" number of nan iterations: %3" PRId64 " |", nan_);

  out += format_text(" tokens/s: %.1f |", step_ms_ > 0 ? tokens_ / (step_ms_ * 1e-3) : 0);
  out += cat(" MFU: ", format_percent(mfu_ms_ / step_ms_), " |");
  out += cat(" MFU(full): ", format_percent(mfu_full_ms_ / step_ms_), " |");
  out += format_text(" mem(GB): %.2f |", double(last_.memory_used) * 1e-9);
  out += format_text(" data(%%): %.1f |", step_ms_ > 0 ? 100 * data_ms_ / step_ms_ : 0);
  out += cat(" ETA: ", format_duration(last_.eta_seconds), " |");
  out += cat(" loss z: ", z_score(last_.loss_z), " | grad norm z: ", z_score(last_.grad_norm_z), " |");
  for (const SourceLoss& s : sources_) {
    out += cat(&s == &sources_.front() ? " by source: " : ", ", s.name);
    out += format_text(" %.6E", s.sum / double(s.steps));
  }
  if (!sources_.empty()) out += " |";
  return out;
}

ConsoleSink::ConsoleSink(const ConsoleOptions& options) : options_(options), out_(options.out_fd) {
  if (options_.log_interval < 1)
    throw Error(cat("log interval: expected at least 1 step, got ", options_.log_interval), Exit::usage);
  if (wants_bar(options_.progress, options_.bar_fd)) bar_ = std::make_unique<ProgressBar>(options_.bar_fd);
}

ConsoleSink::~ConsoleSink() = default;

void ConsoleSink::step(const StepMetrics& m) {
  interval_.add(m);
  if (bar_) {
    auto& losses = bar_state_.losses;
    if (losses.size() == kSparkline) losses.erase(losses.begin());
    losses.push_back(m.loss);
    bar_state_.step = m.step;
    bar_state_.total_steps = m.total_steps;
    bar_state_.loss = m.loss;
    bar_state_.tokens_per_second = m.tokens_per_second;
    bar_state_.eta_seconds = m.eta_seconds;
    bar_->update(bar_state_);
  }
  if (m.step % options_.log_interval != 0 && m.step != m.total_steps && interval_.milliseconds() < kLongest * 1e3)
    return;
  print(interval_.line() + "\n");
  interval_ = {};
}

// Prints Megatron-LM's line, between rulers.
void ConsoleSink::eval(const EvalMetrics& m) {
  if (m.name.starts_with(kOneSource)) return;  // only the mean of all entries is printed
  std::string line = cat(" validation loss at iteration ", m.step, " | ");
  if (m.name != "valid") line += cat("set: ", m.name, " | ");
  line += format_text("lm loss value: %.6E | lm loss PPL: %.6E | ", m.loss, m.perplexity);
  if (std::isfinite(m.bits_per_byte)) line += format_text("bits per byte: %.4f | ", m.bits_per_byte);
  if (m.windows > 0) {
    if (std::isfinite(m.loss_error))
      line += format_text("standard error: %.1E | ", m.loss_error);  // not for one window
    line += m.windows == m.windows_all ? cat("all ", m.windows_all, " windows | ")
                                       : cat(m.windows, " of ", m.windows_all, " windows | ");
  }
  if (!std::isnan(m.accuracy)) line += format_text("accuracy: %.4f | ", m.accuracy);
  if (!std::isnan(m.accuracy_norm)) line += format_text("by characters: %.4f | ", m.accuracy_norm);
  const std::string ruler(line.size() + 1, '-');
  print(cat(ruler, "\n", line, "\n", ruler, "\n"));
}

void ConsoleSink::event(const EventRecord& e) {
  if (e.kind == EventKind::warn) {
    log::warn("step ", e.step, ": ", e.text);
    return;
  }
  std::string line = cat(stamp(e.time), " ", to_string(e.kind), " at iteration ", e.step);
  if (!e.text.empty()) line += cat(" | ", e.text);
  if (e.bytes > 0) line += cat(" | ", format_bytes(e.bytes));
  if (e.seconds > 0) line += cat(" | ", format_duration(e.seconds));
  if (e.stall_seconds > 0 && e.stall_seconds < 0.9 * e.seconds)
    line += cat(", in the background but for ", format_duration(e.stall_seconds));
  print(line + "\n");
}

void ConsoleSink::table(const std::string& text) { print(text); }

void ConsoleSink::print(const std::string& text) {
  if (bar_) bar_->hide();
  const int error = out_.write(text);
  if (bar_) bar_->show();
  if (error == 0 || std::exchange(broken_, true)) return;
  log::warn("metrics: standard output cannot be written: ", std::strerror(error), ": training continues without it");
}

}  // namespace athanor
