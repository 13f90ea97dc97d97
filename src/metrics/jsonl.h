// metrics.jsonl: one JSON object per line and record, written line by line, appended on resume. A restart that repeats
// steps first writes a `resume` marker, so that the effective series is well defined.
#pragma once
#include <cstdint>
#include <set>
#include <string>
#include <string_view>

#include "metrics/append_file.h"
#include "metrics/sink.h"

namespace athanor {

// One line without its newline, always valid JSON. A non-finite number is null, and a field "<field>_nonfinite" names
// it ("nan", "inf", "-inf"), unless NaN only means "unknown" there.
std::string json_line(const StepMetrics&);
std::string json_line(const EvalMetrics&);
std::string json_line(const QuantizedMetrics&);
std::string json_line(const RoutingMetrics&);
std::string json_line(const PrunedMetrics&);
std::string json_line(const CommunicationMetrics&);
std::string json_line(const EventRecord&);

// The end of an existing file.
struct JsonlTail {
  int64_t size = -1;       // up to and including its last newline; negative: leave the file as it is
  int64_t last_step = -1;  // last step of its effective series
};

class JsonlSink : public MetricSink {
 public:
  // Continues a file: truncates an incomplete last line and finds the last step.
  explicit JsonlSink(const std::string& path);

  // If the step is not after the last one in the file and the `resume` event is missing, writes a marker first.
  void step(const StepMetrics&) override;
  void eval(const EvalMetrics&) override;
  void quantized(const QuantizedMetrics&) override;
  void routing(const RoutingMetrics&) override;
  void pruned(const PrunedMetrics&) override;
  void communication(const CommunicationMetrics&) override;
  void event(const EventRecord&) override;  // `resume` gains supersedes_from when later steps are in the file

 private:
  void write(std::string line);

  JsonlTail tail_;
  AppendFile file_;
};

// Names of the evaluation sets with a record after that step in the effective series; empty without a file.
std::set<std::string> evaluations_after(const std::string& path, int64_t step);

}  // namespace athanor
