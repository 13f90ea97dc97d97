// PhaseRunner: runs work that repeats the same launches on the same memory. The first run is eager (libraries build
// their plans in it), the second is captured as one graph per clock phase, later runs launch the graphs. Without
// graphs, or on a device that cannot capture, every run is eager with the same launches.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "device/device.h"
#include "engine/step_table.h"

namespace athanor {

class PhaseRunner {
 public:
  using Enter = std::function<void(Phase)>;
  using Body = std::function<void(const Enter&)>;  // calls its argument before it launches the work of a phase

  // Runs the body. mark(phase) is called on the host just before the work of a phase is launched. replays: captured
  // graphs may replace the body; otherwise the body runs.
  void run(Device&, bool graphs, const Body&, const Enter& mark, bool replays = true);
  bool captured() const { return !graphs_.empty(); }
  void forget();  // makes the next run count as the first

 private:
  struct Part {
    Phase phase;
    std::unique_ptr<Graph> graph;
  };
  void capture(Device&, const Body&);

  bool warm_ = false;
  std::vector<Part> graphs_;
};

}  // namespace athanor
