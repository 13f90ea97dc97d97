// Device: allocation, copies, events and graph capture; no numeric work. Implemented in cpu/ and cuda/.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "tensor/tensor.h"

namespace athanor {

enum class Mem : uint8_t { device, pinned, host };
// An ordered queue of work: a CUDA stream. On the CPU, work runs synchronously in the calling thread.
// copy: from host to device memory, and work of no other stream. copy_back: from device to host memory, a separate
// stream since a GPU's link carries both directions at once. workers: collectives that take whole steps.
enum class Stream : uint8_t { compute, comm, copy, copy_back, workers };
constexpr int kDeviceStreams = 5;

struct Event {
  virtual ~Event() = default;
};

// Work of the compute stream, captured once and launched many times (a CUDA graph).
struct Graph {
  virtual ~Graph() = default;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string description() const = 0;
  // GEMM dimensions should be multiples of this: a 64-byte vector by default, a tile on other devices.
  virtual int64_t dimension_multiple() const { return 16; }
  virtual bool unified() const { return false; }  // the host can access device memory, and streams run synchronously
  // Returns memory aligned for every element type and vector (at least 256 bytes), zero-filled. Called O(1) times per
  // run: all tensors are slices of the planned allocation.
  virtual void* allocate(size_t bytes, Mem) = 0;
  virtual void release(void* memory, size_t bytes, Mem) = 0;
  virtual void copy(void* dst, const void* src, size_t bytes, Stream) = 0;
  virtual size_t capacity(Mem) const = 0;                // bytes this process may use
  virtual size_t allocated() const = 0;                  // bytes allocated and not released
  virtual size_t in_use() const { return allocated(); }  // device bytes in use, including other libraries and processes

  // Events. On unified devices an event is a host time stamp and waiting for it returns at once.
  virtual std::unique_ptr<Event> record(Stream);
  virtual void wait(Stream, const Event&) {}                         // the stream waits; the host does not
  virtual void wait(const Event&) {}                                 // the host waits
  virtual double seconds(const Event& from, const Event& to) const;  // between two completed events
  virtual int64_t host_waits() const { return 0; }                   // number of times the host has waited so far
  virtual void sync() {}                                             // the host waits for all streams
  // Peak FLOP/s of GEMMs with inputs of this dtype, the denominator of MFU; 0: unknown, must be measured.
  virtual double peak_flops(DType) const { return 0; }
  virtual double peak_plain_flops() const { return 0; }  // peak rate of f32 GEMMs without tensor cores
  virtual double peak_bytes() const { return 0; }        // bytes per second of device memory; 0: unknown
  virtual int64_t multiprocessors() const { return 0; }  // SMs of a GPU; 0 on a CPU

  // Capture: between begin_capture and end_capture the compute stream records work without executing it.
  virtual bool can_capture() const { return false; }
  virtual void begin_capture();
  virtual std::unique_ptr<Graph> end_capture();
  virtual void launch(const Graph&);
};

}  // namespace athanor
