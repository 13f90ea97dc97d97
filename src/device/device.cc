#include "device/device.h"

#include <chrono>

namespace athanor {
namespace {

struct HostEvent final : Event {
  std::chrono::steady_clock::time_point when = std::chrono::steady_clock::now();
};

}  // namespace

std::unique_ptr<Event> Device::record(Stream) { return std::make_unique<HostEvent>(); }

double Device::seconds(const Event& from, const Event& to) const {
  const auto time = [](const Event& e) { return dynamic_cast<const HostEvent&>(e).when; };
  return std::chrono::duration<double>(time(to) - time(from)).count();
}

void Device::begin_capture() { CHECK(false, description(), " captures no work"); }
std::unique_ptr<Graph> Device::end_capture() {
  begin_capture();
  return nullptr;
}
void Device::launch(const Graph&) { begin_capture(); }

}  // namespace athanor
