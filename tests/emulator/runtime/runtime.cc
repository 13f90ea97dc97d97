// The one runtime of the process: what it starts with, how a test resets it, and what it tells a test.
#include <algorithm>

#include "emulator/runtime/api.h"

namespace emu {
namespace {
void set_up_addresses(Runtime& rt) {
  init_memory();
  set_host_fault_handler(explain_host_fault);
  for (int d = 0; d < kMaxDevices; ++d) rt.device_addresses[size_t(d)] = {device_base(d), kDeviceBytes, 0, {}};
  rt.pinned_addresses = {pinned_base(), kPinnedBytes, 0, {}};
}

void set_up_devices(Runtime& rt, const std::vector<GpuModel>& gpus) {
  rt.devices = std::vector<Device>(std::min<size_t>(gpus.size(), kMaxDevices));
  for (size_t d = 0; d < rt.devices.size(); ++d) {
    Device& device = rt.devices[d];
    device.model = gpus[d];
    device.memory_limit = gpus[d].memory_bytes;
    device.legacy.device = int(d);
    device.legacy.id = rt.next_object++;
  }
}

void forget_objects(Runtime& rt) {
  rt.captures.clear();
  rt.streams.clear();
  rt.events.clear();
  rt.graphs.clear();
  rt.executables.clear();
  rt.kernels.clear();
}

void forget_errors(Runtime& rt) {
  clear_report();
  rt.sticky = cudaSuccess;
  rt.planned.clear();
  rt.explanation.clear();
  set_last_error(cudaSuccess);
}

// Clears the references of streams, graphs and devices to tasks of a queue that was dropped.
void detach_from_queue(Runtime& rt) {
  for (auto& [handle, stream] : rt.streams) stream->tail = nullptr;
  for (auto& [handle, graph] : rt.executables) graph->last = nullptr;
  for (Device& device : rt.devices) {
    device.legacy.tail = nullptr;
  }
}
}  // namespace

Runtime& runtime() {
  // Never destroyed: static objects of a program may still free memory at its end.
  static Runtime& one = *[] {
    auto made = std::make_unique<Runtime>();
    set_up_addresses(*made);
    set_up_devices(*made, {gpu_h200()});
    return made.release();
  }();
  return one;
}

void simulate(const std::vector<GpuModel>& gpus) {
  Runtime& rt = runtime();
  std::unique_lock lock(rt.mutex);
  drop_queue();
  release_all();
  drop_freed_notes();
  forget_objects(rt);
  forget_errors(rt);
  rt.queue.host_us = 0;
  rt.queue.schedule = Schedule::kMixed;
  set_up_devices(rt, gpus);
  set_current_device(0);
  close_memory();
}

Report take_report() {
  Runtime& rt = runtime();
  std::unique_lock lock(rt.mutex);
  wait_for_everything();
  Report report = faulted() ? first_report() : Report{};
  drop_queue();
  detach_from_queue(rt);
  forget_errors(rt);
  close_memory();
  return report;
}

void seed(uint64_t value) {
  std::unique_lock lock(runtime().mutex);
  set_schedule_seed(value);
  reseed_queue(value);
}

void set_memory_limit(size_t bytes, int device) {
  std::unique_lock lock(runtime().mutex);
  runtime().devices.at(size_t(device)).memory_limit = bytes;
}

void set_schedule(Schedule schedule) {
  std::unique_lock lock(runtime().mutex);
  runtime().queue.schedule = schedule;
}

void set_wait_limit(double seconds) {
  std::unique_lock lock(runtime().mutex);
  runtime().queue.wait_limit_seconds = seconds;
}
}  // namespace emu
