// MetricSink is the interface of record outputs; MetricFanOut completes each record and passes it to every sink.
// Metrics never stop training: a sink that throws is reported once, and the others continue.
#pragma once
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "metrics/outlier.h"
#include "metrics/record.h"
#include "metrics/speed_alarm.h"

namespace athanor {

class MetricSink {
 public:
  virtual ~MetricSink() = default;
  virtual void step(const StepMetrics&) = 0;
  virtual void eval(const EvalMetrics&) = 0;
  virtual void quantized(const QuantizedMetrics&) {}          // many records; only metrics.jsonl stores them
  virtual void routing(const RoutingMetrics&) {}              // only metrics.jsonl stores them
  virtual void pruned(const PrunedMetrics&) {}                // only metrics.jsonl stores them
  virtual void communication(const CommunicationMetrics&) {}  // only metrics.jsonl stores them
  virtual void table(const std::string&) {}                   // text at the end of a run; only the console prints it
  virtual void event(const EventRecord&) = 0;
};

// Fills in time, z-scores and perplexity, and sends the record to every sink. Raises a `warn` event if a step's loss is
// more than kLossAlarm standard deviations above the recent ones, and for every alarm of SpeedAlarm. Thread-safe.
class MetricFanOut : public MetricSink {
 public:
  static constexpr double kLossAlarm = 6;  // 6 sigma over 128 steps, as in OLMo-core's step skipping

  void add(std::unique_ptr<MetricSink>);
  void step(const StepMetrics&) override;
  void eval(const EvalMetrics&) override;
  void quantized(const QuantizedMetrics&) override;
  void routing(const RoutingMetrics&) override;
  void pruned(const PrunedMetrics&) override;
  void communication(const CommunicationMetrics&) override;
  void table(const std::string&) override;
  void event(const EventRecord&) override;

 private:
  struct Entry {
    std::unique_ptr<MetricSink> sink;
    bool failed = false;  // the failure was reported
  };
  template <class Call>
  void each(Call&&);
  template <class Metrics>
  void pass_on(Metrics metrics, void (MetricSink::*to)(const Metrics&));
  void send(EventRecord);

  std::mutex mutex_;
  std::vector<Entry> entries_;
  Outlier loss_, grad_norm_;
  SpeedAlarm speed_;
};

}  // namespace athanor
