// TensorBoard event files, written without protobuf: a new file at every start, in a folder that TensorBoard shows as
// one run. A SessionLog START event makes TensorBoard drop the steps that a restart repeats.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "metrics/append_file.h"
#include "metrics/sink.h"

namespace athanor {

// The frame of one record: length, masked CRC-32C of the length, data, masked CRC-32C of the data [TensorFlow,
// TFRecord].
std::string tfrecord(std::string_view data);

class TensorboardSink : public MetricSink {
 public:
  // Scalars of every `interval`-th step go to folder/events.out.tfevents.<seconds>.<host>.<pid>.0, whose name sorts
  // behind those of earlier starts, because TensorBoard reads them in that order.
  explicit TensorboardSink(const std::string& folder, int64_t interval = 1);

  void step(const StepMetrics&) override;
  void eval(const EvalMetrics&) override;
  void event(const EventRecord&) override;  // only `resume` writes something
  const std::string& path() const { return file_.path(); }

 private:
  void start_at(int64_t step, double time);  // resets the series to this step

  AppendFile file_;
  int64_t interval_;
  int64_t next_step_ = -1;  // steps below it are repeated; negative: unknown
};

}  // namespace athanor
