// metrics.jsonl: one JSON object per line and record, given to the kernel line by line, appended on resume. A restart
// that repeats steps first writes a `resume` marker, so that the file's effective series is well defined.
#pragma once
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "metrics/append_file.h"
#include "metrics/sink.h"

namespace athanor {

// One line without its newline. Valid JSON always: a number that is not finite is null, and "<field>_nonfinite" beside
// it names it ("nan", "inf", "-inf") unless NaN only means "not known" there.
std::string json_line(const StepMetrics&);
std::string json_line(const EvalMetrics&);
std::string json_line(const EventRecord&);

// Where an existing file ends.
struct JsonlTail {
  int64_t size = -1;       // up to and including its last newline; negative: leave the file as it is
  int64_t last_step = -1;  // of its effective series
};

class JsonlSink : public MetricSink {
 public:
  // Continues a file: cuts off a torn last line and finds the last step in it.
  explicit JsonlSink(const std::string& path);

  // A step that is not behind the last one in the file is preceded by a marker, should the `resume` event be missing.
  void step(const StepMetrics&) override;
  void eval(const EvalMetrics&) override;
  void event(const EventRecord&) override;  // `resume` gains supersedes_from when later steps are in the file

 private:
  void write(std::string line);

  JsonlTail tail_;
  AppendFile file_;
};

// A metrics.jsonl as the run really went.
struct MetricHistory {
  std::vector<StepMetrics> steps;   // steps ascend; records that a restart superseded are left out
  std::vector<EvalMetrics> evals;   // likewise; in file order
  std::vector<EventRecord> events;  // all of them, in file order
  int64_t superseded = 0;           // step and evaluation records left out
  int64_t bad_lines = 0;            // lines that are no record, a torn last one included
};

// Names of the sets that the effective series holds an evaluation of after that step; none where there is no file.
std::set<std::string> evaluations_after(const std::string& path, int64_t step);

// Throws if the file cannot be read; bad lines are counted and left out. Unknown fields and events are ignored.
MetricHistory read_metrics(const std::string& path);

}  // namespace athanor
