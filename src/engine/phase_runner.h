// PhaseRunner: work that repeats with the same launches on the same memory. The first time it runs as it is (libraries
// make their plans then); the second time it is captured, cut into a graph per clock phase; from then on the graphs are
// launched. Devices that capture nothing, and runs without graphs, run it as it is every time: the same launches.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "device/device.h"
#include "metrics/step_table.h"

namespace athanor {

class PhaseRunner {
 public:
  using Enter = std::function<void(Phase)>;
  using Body = std::function<void(const Enter&)>;  // calls its argument before the launches of each phase

  // mark(phase) is called on the host just before the work of a phase is launched.
  void run(Device&, bool graphs, const Body&, const Enter& mark);
  bool captured() const { return !graphs_.empty(); }
  void forget();  // the next run is the first again

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
