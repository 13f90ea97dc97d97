// The log line of a run on stdout, in Megatron-LM's words so that its parsers read it, and the progress bar on stderr.
// It reports one process: create it on rank 0 only.
#pragma once
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "metrics/progress.h"
#include "metrics/sink.h"

namespace athanor {

struct ConsoleOptions {
  int64_t log_interval = 10;  // steps per line
  Progress progress = Progress::automatic;
  std::FILE* out = stdout;  // the lines
  int bar_fd = 2;           // the bar
};

// Means over the steps of one log line: times by step, rates by time, the loss over the steps that were not skipped.
class LogInterval {
 public:
  void add(const StepMetrics&);
  double milliseconds() const { return step_ms_; }
  // Megatron-LM's line with our figures behind it, without a newline.
  std::string line() const;

 private:
  StepMetrics last_;
  int64_t steps_ = 0, skipped_ = 0, nan_ = 0, losses_ = 0;
  double loss_ = 0, step_ms_ = 0, data_ms_ = 0, tokens_ = 0, mfu_ms_ = 0, mfu_full_ms_ = 0;
};

class ConsoleSink : public MetricSink {
 public:
  explicit ConsoleSink(const ConsoleOptions&);
  ~ConsoleSink() override;
  ConsoleSink(const ConsoleSink&) = delete;
  ConsoleSink& operator=(const ConsoleSink&) = delete;

  // A line every log_interval steps, at the last step, and where steps are long after the first that ends kLongest or
  // more after the line before.
  static constexpr double kLongest = 60;  // seconds
  void step(const StepMetrics&) override;
  void eval(const EvalMetrics&) override;
  void event(const EventRecord&) override;  // `warn` through base/log.h, the others as a line

 private:
  void print(const std::string& line);

  ConsoleOptions options_;
  LogInterval interval_;
  std::unique_ptr<ProgressBar> bar_;  // null: no bar
  BarState bar_state_;
  bool broken_ = false;  // stdout could not be written; reported
};

}  // namespace athanor
