#include "engine/phase_runner.h"

#include <utility>

namespace athanor {

void PhaseRunner::run(Device& device, bool graphs, const Body& body, const Enter& mark, bool replays) {
  if (!graphs || !device.can_capture() || !warm_ || (captured() && !replays)) {
    body(mark);
    warm_ = true;
    return;
  }
  if (graphs_.empty()) capture(device, body);
  for (const Part& part : graphs_) {
    mark(part.phase);
    device.launch(*part.graph);
  }
}

void PhaseRunner::capture(Device& device, const Body& body) {
  std::vector<Part> parts;
  bool open = false;
  const auto close = [&] {
    if (std::exchange(open, false)) parts.back().graph = device.end_capture();
  };
  try {
    body([&](Phase phase) {
      close();
      parts.push_back({phase, nullptr});
      device.begin_capture();
      open = true;
    });
    close();
  } catch (...) {  // the stream must leave capture, since error handling still uses it
    try {
      close();
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch): report the first error
    }
    throw;
  }
  graphs_ = std::move(parts);
}

void PhaseRunner::forget() {
  graphs_.clear();
  warm_ = false;
}

}  // namespace athanor
