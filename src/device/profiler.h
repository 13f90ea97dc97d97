// Profiler: records kernels, copies and fills with their device times, replayed graphs included, without changing
// execution. Knows no ops: the host labels what it launches.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace athanor {

struct DeviceWork {
  std::string name;            // of the kernel; "copy", "fill"
  int64_t label = 0;           // what begin() said when the host launched or captured it; 0: nothing
  int64_t stream = 0;          // activities of one stream do not overlap
  int64_t begin = 0, end = 0;  // ns on the profiler's clock
};

struct DeviceLog {
  std::vector<DeviceWork> done;
  int64_t lost = 0;     // how many are missing
  std::string problem;  // not empty: the profiler has failed, and what it says from now on is worth nothing
};

// All calls are for the thread that launches work.
class Profiler {
 public:
  virtual ~Profiler() = default;
  virtual std::string description() const = 0;
  virtual void begin(int64_t label) = 0;  // of all that is launched or captured until end()
  virtual void end() = 0;
  virtual DeviceLog take() = 0;     // all since the last call; before it, the host has waited for the device
  virtual int64_t now() const = 0;  // ns on its clock
};

}  // namespace athanor
