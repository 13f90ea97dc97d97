// TensorBoard event files, written without the protobuf library: a new file at every start, in a folder that
// TensorBoard shows as one run. A SessionLog START event makes TensorBoard drop the steps that a restart repeats.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "metrics/append_file.h"
#include "metrics/sink.h"

namespace athanor {

// Frames one record: length, masked CRC-32C of the length, data, masked CRC-32C of the data [TensorFlow, TFRecord].
std::string tfrecord(std::string_view data);

class TensorboardSink : public MetricSink {
 public:
  // Writes the scalars of every `interval`-th step to folder/events.out.tfevents.<seconds>.<host>.<pid>.0. The name
  // sorts after those of earlier starts, because TensorBoard reads files in that order.
  explicit TensorboardSink(const std::string& folder, int64_t interval = 1);

  void step(const StepMetrics&) override;
  void eval(const EvalMetrics&) override;
  void event(const EventRecord&) override;  // writes something only for `resume`
  const std::string& path() const { return file_.path(); }

 private:
  void start_at(int64_t step, double time);  // resets the series to this step

  AppendFile file_;
  int64_t interval_;
  int64_t next_step_ = -1;  // earlier steps are repeated; negative: unknown
};

}  // namespace athanor
