// Device: memory and time, nothing numeric. cpu/ and cuda/ implement it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "tensor/tensor.h"

namespace athanor {

enum class Mem : uint8_t { device, pinned, host };
// A lane is an ordered queue of work (a CUDA stream). CPU lanes run at once.
enum class Lane : uint8_t { compute, comm, copy };

struct Event {
  virtual ~Event() = default;
};

// Work of the compute lane, captured to be launched again and again (a CUDA graph).
struct Graph {
  virtual ~Graph() = default;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string description() const = 0;
  // Elements that dimensions of products should be multiples of: a vector of 64 bytes here, tiles on other devices.
  virtual int64_t dimension_multiple() const { return 16; }
  virtual bool unified() const { return false; }  // the host reads and writes device memory, and lanes run at once
  // Aligned for every element type and vector (256 bytes at least), zero-filled. Called O(1) times per run: everything
  // else is carved out of the plan.
  virtual void* allocate(size_t bytes, Mem) = 0;
  virtual void release(void* memory, size_t bytes, Mem) = 0;
  virtual void copy(void* dst, const void* src, size_t bytes, Lane) = 0;
  virtual size_t capacity(Mem) const = 0;                // bytes this process may use
  virtual size_t allocated() const = 0;                  // bytes handed out and not released
  virtual size_t in_use() const { return allocated(); }  // bytes of the device in use, libraries and others included

  // Events; those of unified devices are times of the host, for which nobody has to wait.
  virtual std::unique_ptr<Event> record(Lane);
  virtual void wait(Lane, const Event&) {}                           // the lane waits; the host does not
  virtual void wait(const Event&) {}                                 // the host waits
  virtual double seconds(const Event& from, const Event& to) const;  // between two events that have happened
  virtual int64_t host_waits() const { return 0; }                   // how often the host has waited so far
  virtual void sync() {}                                             // the host waits for all lanes
  // Rate of matrix products with inputs of this type that MFU is a fraction of; 0: not known, measure one.
  virtual double peak_flops(DType) const { return 0; }
  virtual double peak_bytes() const { return 0; }        // bytes per second of device memory; 0: not known
  virtual int64_t multiprocessors() const { return 0; }  // of a GPU

  // Capture: between begin_capture and end_capture the compute lane records work instead of doing it.
  virtual bool can_capture() const { return false; }
  virtual void begin_capture();
  virtual std::unique_ptr<Graph> end_capture();
  virtual void launch(const Graph&);
};

}  // namespace athanor
