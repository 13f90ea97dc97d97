// metrics.jsonl: one JSON object per record and line, appended on resume. A restart that repeats steps first writes a
// `resume` marker, so that the effective series is well defined.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "metrics/append_file.h"
#include "metrics/sink.h"

namespace athanor {

// One line, without a newline, always valid JSON. A non-finite number is null, and an extra field "<field>_nonfinite"
// names it ("nan", "inf", "-inf"), unless NaN only means "unknown" in that field.
std::string json_line(const StepMetrics&);
std::string json_line(const EvalMetrics&);
std::string json_line(const QuantizedMetrics&);
std::string json_line(const RoutingMetrics&);
std::string json_line(const PrunedMetrics&);
std::string json_line(const CommunicationMetrics&);
std::string json_line(const EventRecord&);

// State at the end of an existing file.
struct JsonlTail {
  int64_t size = -1;       // bytes up to and including the last newline; negative: leave the file as it is
  int64_t last_step = -1;  // last step of the effective series
};

class JsonlSink : public MetricSink {
 public:
  // Continues an existing file: removes an incomplete last line and finds the last step.
  explicit JsonlSink(const std::string& path);

  // Writes a marker first if the step is not after the last one in the file and there was no `resume` event.
  void step(const StepMetrics&) override;
  void eval(const EvalMetrics&) override;
  void quantized(const QuantizedMetrics&) override;
  void routing(const RoutingMetrics&) override;
  void pruned(const PrunedMetrics&) override;
  void communication(const CommunicationMetrics&) override;
  void event(const EventRecord&) override;  // adds supersedes_from to a `resume` event if the file has later steps

 private:
  void write(std::string line);

  JsonlTail tail_;
  AppendFile file_;
};

// Losses of the evaluations after `step` in the effective series, by the name of the set; empty if there is no file.
std::map<std::string, double> evaluations_after(const std::string& path, int64_t step);

}  // namespace athanor
