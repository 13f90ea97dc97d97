// StepProfile: times of the ops of whole steps, compared with their rooflines. With a profiler, steps run unchanged,
// including graphs, and times are kernel times; without one, ops are launched one by one between events.
#pragma once
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/profiler.h"
#include "engine/engine.h"
#include "metrics/trace.h"
#include "perf/collective_times.h"
#include "perf/roofline.h"
#include "perf/traffic.h"

namespace athanor {

class LabelOps;
class TimedOps;

// Device busy time between the first and the last activity, in seconds; sums over steps.
struct Occupation {
  double window = 0, busy = 0;
  double exposed = 0;  // portion of busy in which only communication runs
  // `exposed` by kind of NCCL kernel, such as AllReduce; each of two concurrent kernels counts.
  std::map<std::string, double> exposed_by = {};
  std::map<int64_t, double> exposed_by_label = {};  // `exposed` by label of the NCCL kernel
  double idle() const { return window > 0 ? 1 - busy / window : 0; }
};
Occupation occupation(std::span<const DeviceWork>);

// Corrects kernels of programmatic launches, which start early and wait for the previous kernel of their stream: each
// compute kernel begins when the previous one has ended. Returns activities in the order of begin.
std::vector<DeviceWork> without_waits(std::vector<DeviceWork>);

// Communication of one layer group in one step. NaN: unknown, or not modelled.
struct CommunicationRow {
  LayerGroup of;
  double calls, exposed, seconds;  // see CollectiveRow
  double modelled;                 // exposed seconds predicted by the model of perf/traffic.h
};

class StepProfile {
 public:
  struct Options {
    Profiler* profiler = nullptr;  // null: events
    std::string why_events;        // reason for having no profiler; "" if none is expected
    Roofline limits;
    bool by_shape = false;
    TraceWriter* trace = nullptr;            // gets every kernel, or every op
    CollectiveWatch* collectives = nullptr;  // watch of the engine's mesh; null: no split of collectives
  };
  // Attaches the profile to the engine. The device must be idle.
  StepProfile(Engine&, Backend, Options);
  ~StepProfile();
  StepProfile(const StepProfile&) = delete;
  StepProfile& operator=(const StepProfile&) = delete;

  // Both wait for the device. end_step(): the work since the last call was one step, which counts unless it is one of
  // the first, preparing steps; skip(): the work was something else.
  void end_step(double seconds = 0);
  void skip();

  int64_t steps() const { return steps_; }           // counted steps
  const std::map<std::string, OpRow>& rows() const;  // summed over these steps
  double step_seconds() const {
    return steps_ > 0 ? seconds_ / double(steps_) : 0;
  }                                                      // mean of the values passed to end_step()
  const std::string& source() const { return source_; }  // source of the times: the profiler, or "events"
  const std::string& why_events() const { return options_.why_events; }
  const Occupation& occupied() const { return occupied_; }
  int64_t lost() const { return lost_; }  // number of missing activities
  // Sums over the counted steps by unit ("" for the whole step), group and kind. Empty if times of collectives are not
  // known: one rank, or a GPU without a profiler.
  std::map<CollectiveKey, CollectiveRow> collectives() const;
  // collectives() summed over kinds, in the order of units, with the modelled times. Empty with one rank.
  std::vector<CommunicationRow> communication() const;
  // Returns op_table() and communication(), plus a line on the source of the times and, for kernels, the device's idle
  // time between them.
  std::string table(double step_seconds) const;

 private:
  void use_events();
  void settle(bool count);
  void add(const DeviceLog&);
  void add_collectives(const DeviceLog&, const Occupation&);
  void watch_collectives(Profiler*);
  void write_spans(const DeviceLog&);
  std::map<LayerGroup, double> modelled_communication() const;

  Engine& engine_;
  Backend backend_;
  Options options_;
  std::string source_;
  std::unique_ptr<LabelOps> labels_;  // used with a profiler
  std::unique_ptr<TimedOps> timed_;   // used without a profiler
  std::unique_ptr<CollectiveTimes> collectives_;
  std::map<std::string, OpRow> kernel_rows_;
  Occupation occupied_;
  int64_t lost_ = 0, steps_ = 0, preparing_ = 0;
  double seconds_ = 0;
};

}  // namespace athanor
