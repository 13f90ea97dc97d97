// A machine for the fake libraries alone: host memory is device memory, streams are queues that synchronize() drains.
// Nothing is checked. Each host thread chooses its device; several threads may queue and drain at once.
#pragma once
#include <deque>
#include <map>
#include <mutex>
#include <string>

#include "machine.h"

namespace emu::fakes {

class SimpleMachine {
 public:
  explicit SimpleMachine(int devices = 1, MachineDevice description = {});
  SimpleMachine(const SimpleMachine&) = delete;
  SimpleMachine& operator=(const SimpleMachine&) = delete;

  Machine machine();  // must not outlive this

  void set_device(int device);  // of the calling thread
  cudaStream_t make_stream();   // on the calling thread's device
  void fail_next(const std::string& function, int nth, int code);
  void describe_devices(MachineDevice description);

  // Runs the stream's operations in order. False if it still waits for others (a collective) after the given time.
  bool synchronize(cudaStream_t stream, double seconds = 60);
  size_t pending(cudaStream_t stream);
  const Observer& observer() const { return observer_; }  // of a fake; what it shall hear is the test's to say

 private:
  struct Plan {
    int nth = 0, code = 0;
  };
  cudaError_t enqueue(cudaStream_t stream, LibraryOperation operation);
  bool planned(const char* function, int* code);
  int device_of(cudaStream_t stream);

  int devices_;
  MachineDevice description_;
  std::mutex mutex_;
  std::map<cudaStream_t, std::deque<LibraryOperation>> queues_;
  std::map<cudaStream_t, int> device_of_stream_;
  std::map<std::string, Plan> plans_;
  Observer observer_;
  std::deque<char> streams_;  // a stream is the address of its element
};

}  // namespace emu::fakes
