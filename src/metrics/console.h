// Prints a run's log lines on stdout, in Megatron-LM's format so that its parsers work, and the progress bar on stderr.
// Never blocks on a slow reader (base/output.h). Reports one process: create it on rank 0 only.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/output.h"
#include "metrics/progress.h"
#include "metrics/sink.h"

namespace athanor {

struct ConsoleOptions {
  int64_t log_interval = 10;  // steps per line
  Progress progress = Progress::automatic;
  int out_fd = 1;  // file descriptor of the log lines
  int bar_fd = 2;  // file descriptor of the progress bar
};

// Averages over the steps of one log line: times per step, rates per time, and the loss over steps that were not
// skipped.
class LogInterval {
 public:
  void add(const StepMetrics&);
  double milliseconds() const { return step_ms_; }
  // Megatron-LM's line followed by additional fields, without a newline.
  std::string line() const;

 private:
  struct SourceLoss {
    std::string name;
    double sum = 0;
    int64_t steps = 0;
  };
  StepMetrics last_;
  std::vector<SourceLoss> sources_;  // in the order of their first tokens
  int64_t steps_ = 0, skipped_ = 0, nan_ = 0, losses_ = 0;
  double loss_ = 0, step_ms_ = 0, data_ms_ = 0, tokens_ = 0, mfu_ms_ = 0, mfu_full_ms_ = 0;
};

class ConsoleSink : public MetricSink {
 public:
  explicit ConsoleSink(const ConsoleOptions&);
  ~ConsoleSink() override;
  ConsoleSink(const ConsoleSink&) = delete;
  ConsoleSink& operator=(const ConsoleSink&) = delete;

  // Prints a line every log_interval steps, at the last step, and, if steps are slow, after the first step that ends at
  // least kLongest after the previous line.
  static constexpr double kLongest = 60;  // seconds
  void step(const StepMetrics&) override;
  void eval(const EvalMetrics&) override;
  void table(const std::string& text) override;
  void event(const EventRecord&) override;  // `warn` events go to base/log.h, other events are printed as a line

 private:
  void print(const std::string& text);

  ConsoleOptions options_;
  Output out_;
  LogInterval interval_;
  std::unique_ptr<ProgressBar> bar_;  // null: no bar
  BarState bar_state_;
  bool broken_ = false;  // writing to stdout failed, and that was reported
};

}  // namespace athanor
