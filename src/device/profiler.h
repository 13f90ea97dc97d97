// Profiler: records kernels, copies and fills with their device times, including those of replayed graphs, without
// changing execution. Independent of ops: the host labels what it launches.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace athanor {

struct DeviceWork {
  std::string name;            // kernel name, "copy" or "fill"
  int64_t label = 0;           // label passed to begin() when the work was launched or captured; 0: none
  int64_t stream = 0;          // two items of a stream overlap only with programmatic dependent launch
  int64_t begin = 0, end = 0;  // ns on the profiler's clock
};

struct DeviceLog {
  std::vector<DeviceWork> done;
  int64_t lost = 0;     // number of records dropped
  std::string problem;  // if not empty: why the profiler failed; later records are not valid
};

// Call only from the thread that launches work.
class Profiler {
 public:
  virtual ~Profiler() = default;
  virtual std::string description() const = 0;
  virtual void begin(int64_t label) = 0;  // labels all work that is launched or captured until end()
  virtual void end() = 0;
  virtual DeviceLog take() = 0;     // all records since the last call; sync the device first
  virtual int64_t now() const = 0;  // ns on the profiler's clock
};

}  // namespace athanor
