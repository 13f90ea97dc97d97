// Queues in host memory; see simple_machine.h.
#include "simple_machine.h"

#include <chrono>
#include <cstdlib>
#include <thread>

namespace emu::fakes {
namespace {
thread_local int thread_device = 0;  // as cudaSetDevice is: of the thread
}

SimpleMachine::SimpleMachine(int devices, MachineDevice description) : devices_(devices), description_(description) {
  thread_device = 0;
}

Machine SimpleMachine::machine() {
  return {.enqueue = [this](cudaStream_t stream,
                            LibraryOperation operation) { return enqueue(stream, std::move(operation)); },
          .wake = [] {},
          .progress = [this](cudaStream_t stream) { return synchronize(stream, 0); },
          .is_capturing = [](cudaStream_t) { return false; },
          .current_device = [] { return thread_device; },
          .device_of_stream = [this](cudaStream_t stream) { return device_of(stream); },
          .describe = [this](int) { return description_; },
          .planned_failure = [this](const char* function, int* code) { return planned(function, code); },
          .allocate = [](size_t bytes) { return std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096); },
          .release = [](void* memory) { std::free(memory); },
          .observe = [this](Observer observer) { observer_ = std::move(observer); },
          .microseconds = [] { return 0.; }};
}

void SimpleMachine::set_device(int device) { thread_device = device; }

void SimpleMachine::describe_devices(MachineDevice description) { description_ = description; }

cudaStream_t SimpleMachine::make_stream() {
  std::lock_guard lock(mutex_);
  auto stream = reinterpret_cast<cudaStream_t>(&streams_.emplace_back());
  device_of_stream_[stream] = thread_device;
  return stream;
}

void SimpleMachine::fail_next(const std::string& function, int nth, int code) {
  std::lock_guard lock(mutex_);
  plans_[function] = {.nth = nth, .code = code};
}

bool SimpleMachine::planned(const char* function, int* code) {
  std::lock_guard lock(mutex_);
  auto plan = plans_.find(function);
  if (plan == plans_.end() || --plan->second.nth > 0) return false;
  *code = plan->second.code;
  plans_.erase(plan);
  return true;
}

int SimpleMachine::device_of(cudaStream_t stream) {
  if (stream == nullptr) return thread_device;
  std::lock_guard lock(mutex_);
  auto found = device_of_stream_.find(stream);
  return found == device_of_stream_.end() ? -1 : found->second;
}

cudaError_t SimpleMachine::enqueue(cudaStream_t stream, LibraryOperation operation) {
  if (device_of(stream) < 0) return cudaErrorInvalidResourceHandle;
  std::lock_guard lock(mutex_);
  queues_[stream].push_back(std::move(operation));
  return cudaSuccess;
}

size_t SimpleMachine::pending(cudaStream_t stream) {
  std::lock_guard lock(mutex_);
  return queues_[stream].size();
}

bool SimpleMachine::synchronize(cudaStream_t stream, double seconds) {
  auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  for (;;) {
    {
      std::lock_guard lock(mutex_);
      auto& queue = queues_[stream];
      while (!queue.empty() && (!queue.front().ready || queue.front().ready())) {
        queue.front().compute();
        queue.pop_front();
      }
      if (queue.empty()) return true;
    }
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

}  // namespace emu::fakes
