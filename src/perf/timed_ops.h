// TimedOps: a decorator that times every op on the device with an event before and after it, without waiting in
// between, and sums time, operations and traffic per op, or per op and shape.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "device/device.h"
#include "metrics/trace.h"
#include "ops/decorate.h"
#include "perf/roofline.h"

namespace athanor {

class TimedOps final : public Decorated<TimedOps> {
 public:
  struct Options {
    Roofline limits;
    bool by_shape = false;
    TraceWriter* trace = nullptr;  // gets a span per op; may be null
  };
  TimedOps(Ops& inner, Device& device, const Options& options) : inner_(inner), device_(device), options_(options) {
    begin_log();
  }

  template <class Op>
  void on(const Op& op, void* scratch) {
    auto begin = device_.record(Stream::compute);
    inner_.run(op, scratch);
    pending_.push_back({launch_of(op, inner_), std::move(begin), device_.record(Stream::compute)});
  }
  const Ops& inner() const { return inner_; }

  // Waits for the device. Adds the launches since the last call to the rows if `count`.
  void settle(bool count) {
    device_.sync();
    for (const Pending& p : pending_) {
      const double seconds = device_.seconds(*p.begin, *p.end);
      if (options_.trace) write_span(p, seconds);
      if (!count) continue;
      OpRow& row = rows_[row_name(p.launch, options_.by_shape)];
      row.add(p.launch, options_.limits);
      row.seconds += seconds;
    }
    begin_log();
  }
  const std::map<std::string, OpRow>& rows() const { return rows_; }

 private:
  struct Pending {
    Launch launch;
    std::unique_ptr<Event> begin, end;
  };
  // Relates the device's clock to the host's; the device must be idle.
  void begin_log() {
    pending_.clear();
    log_begin_ = device_.record(Stream::compute);
    log_begin_time_ = TraceWriter::Clock::now();
  }
  void write_span(const Pending& p, double seconds) {
    const auto ticks = [](double s) {
      return std::chrono::duration_cast<TraceWriter::Clock::duration>(std::chrono::duration<double>(s));
    };
    const auto begin = log_begin_time_ + ticks(device_.seconds(*log_begin_, *p.begin));
    options_.trace->complete(
        {.name = p.launch.op, .category = "", .tid = 0, .begin = begin, .end = begin + ticks(seconds)});
  }

  Ops& inner_;
  Device& device_;
  Options options_;
  std::unique_ptr<Event> log_begin_;
  TraceWriter::Clock::time_point log_begin_time_;
  std::vector<Pending> pending_;
  std::map<std::string, OpRow> rows_;
};

}  // namespace athanor
