#include "metrics/sink.h"

#include <chrono>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace athanor {
namespace {

double now_or(double time) {
  if (time != 0) return time;
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

void MetricFanOut::add(std::unique_ptr<MetricSink> sink) {
  const std::lock_guard lock(mutex_);
  entries_.push_back({std::move(sink), false});
}

template <class Call>
void MetricFanOut::each(Call&& call) {
  for (Entry& entry : entries_) {
    try {
      call(*entry.sink);
    } catch (const std::exception& e) {
      if (!std::exchange(entry.failed, true)) log::warn("metrics: a record was lost, training continues: ", e.what());
    }
  }
}

void MetricFanOut::send(EventRecord record) {
  record.time = now_or(record.time);
  each([&](MetricSink& sink) { sink.event(record); });
}

void MetricFanOut::step(const StepMetrics& metrics) {
  const std::lock_guard lock(mutex_);
  StepMetrics m = metrics;
  m.time = now_or(m.time);
  m.loss_z = loss_.push(m.loss);
  m.grad_norm_z = grad_norm_.push(m.grad_norm);
  each([&](MetricSink& sink) { sink.step(m); });
  if (m.loss_z > kLossAlarm)
    send({.kind = EventKind::warn,
          .step = m.step,
          .text = cat("loss ", m.loss, " is ", m.loss_z, " standard deviations above its mean over the last ",
                      Outlier::kWindow, " steps: look at the data of this step, or lower the learning rate")});
  for (std::string& text : speed_.push(m)) send({.kind = EventKind::warn, .step = m.step, .text = std::move(text)});
}

void MetricFanOut::eval(const EvalMetrics& metrics) {
  const std::lock_guard lock(mutex_);
  EvalMetrics m = metrics;
  m.time = now_or(m.time);
  if (std::isnan(m.perplexity)) m.perplexity = std::exp(m.loss);
  each([&](MetricSink& sink) { sink.eval(m); });
}

template <class Metrics>
void MetricFanOut::pass_on(Metrics metrics, void (MetricSink::*to)(const Metrics&)) {
  const std::lock_guard lock(mutex_);
  metrics.time = now_or(metrics.time);
  each([&](MetricSink& sink) { (sink.*to)(metrics); });
}

void MetricFanOut::communication(const CommunicationMetrics& m) { pass_on(m, &MetricSink::communication); }
void MetricFanOut::pruned(const PrunedMetrics& m) { pass_on(m, &MetricSink::pruned); }
void MetricFanOut::routing(const RoutingMetrics& m) { pass_on(m, &MetricSink::routing); }
void MetricFanOut::quantized(const QuantizedMetrics& m) { pass_on(m, &MetricSink::quantized); }

void MetricFanOut::table(const std::string& text) {
  const std::lock_guard lock(mutex_);
  each([&](MetricSink& sink) { sink.table(text); });
}

void MetricFanOut::event(const EventRecord& record) {
  const std::lock_guard lock(mutex_);
  send(record);
}

}  // namespace athanor
