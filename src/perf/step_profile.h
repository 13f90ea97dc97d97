// StepProfile: what the ops of whole steps take, beside the limit of each. With a profiler steps run as ever, graphs
// included, and times are those of the kernels; without one there are events around every op, launched one by one.
#pragma once
#include <map>
#include <memory>
#include <span>
#include <string>

#include "device/profiler.h"
#include "engine/engine.h"
#include "metrics/trace.h"
#include "perf/roofline.h"

namespace athanor {

class LabelOps;
class TimedOps;

// How much of the time between the first and the last activity something ran. Seconds; sums over steps.
struct Occupation {
  double window = 0, busy = 0;
  double exposed = 0;  // of busy: nothing but communication
  double idle() const { return window > 0 ? 1 - busy / window : 0; }
};
Occupation occupation(std::span<const DeviceWork>);

class StepProfile {
 public:
  struct Options {
    Profiler* profiler = nullptr;  // null: events
    std::string why_events;        // why there is no profiler; "" where none is expected
    Roofline limits;
    bool by_shape = false;
    TraceWriter* trace = nullptr;  // gets every kernel, or every op
  };
  // The engine runs under this profile from now on. The device is idle.
  StepProfile(Engine&, Backend, Options);
  ~StepProfile();
  StepProfile(const StepProfile&) = delete;
  StepProfile& operator=(const StepProfile&) = delete;

  // Waits for the device: what ran since the last call was one step (of the first ones, which prepare, nothing counts),
  // or was something else.
  void end_step(double seconds = 0);
  void skip();

  int64_t steps() const { return steps_; }           // that count
  const std::map<std::string, OpRow>& rows() const;  // of all these steps together
  double step_seconds() const {
    return steps_ > 0 ? seconds_ / double(steps_) : 0;
  }                                                      // mean of what end_step() was told
  const std::string& source() const { return source_; }  // of the times: the profiler's description, or "events"
  const std::string& why_events() const { return options_.why_events; }
  const Occupation& occupied() const { return occupied_; }
  int64_t lost() const { return lost_; }  // activities that are missing
  // op_table() with a line about where times come from and, of kernels, what the device did between them.
  std::string table(double step_seconds) const;

 private:
  void use_events();
  void settle(bool count);
  void add(const DeviceLog&);
  void write_spans(const DeviceLog&);

  Engine& engine_;
  Backend backend_;
  Options options_;
  std::string source_;
  std::unique_ptr<LabelOps> labels_;  // with a profiler
  std::unique_ptr<TimedOps> timed_;   // without one
  std::map<std::string, OpRow> kernel_rows_;
  Occupation occupied_;
  int64_t lost_ = 0, steps_ = 0, preparing_ = 0;
  double seconds_ = 0;
};

}  // namespace athanor
