// How the fakes of cuBLASLt, cuDNN and NCCL put work on streams: an operation is queued (or captured in a graph) like a
// kernel, and its accesses are checked against the order of streams. The computation itself is host code.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>
namespace emu {

struct MemoryRange {
  const void* begin = nullptr;
  size_t bytes = 0;
};

struct LibraryOperation {
  std::string name;                 // as it shall appear in faults: "cublasLtMatmul"
  std::vector<MemoryRange> reads;   // checked and stamped before `compute`
  std::vector<MemoryRange> writes;  // a range that is read and written stands in both
  std::function<void()> compute;    // may touch device memory; must not call CUDA; runs again at each graph replay
  // What the operation waits for beside stream order, such as the other ranks of a collective; empty: nothing.
  // Evaluated under the runtime's lock. Whoever makes it true calls wake_waiting_operations().
  std::function<bool()> ready;
  // Operations on other streams that `ready` waited for: their accesses happened before this operation. Names them by
  // the tickets that enqueue_operation() gave.
  std::function<std::vector<unsigned long long>()> also_after;
  double microseconds = 5;  // on the virtual clock
};

// Queues the operation. `ticket`, if given, names it for `also_after`; it is 0 when the stream is being captured.
cudaError_t enqueue_operation(cudaStream_t stream, LibraryOperation operation, unsigned long long* ticket = nullptr);

// What a profiler hears: work as it is queued and as it has run, nodes of graphs. Called under the runtime's lock; must
// not call the runtime.
struct QueuedWork {
  unsigned long long ticket = 0, stream = 0;
  unsigned long long node = 0;  // of the executable graph; 0: launched outside of one
};
struct FinishedWork {
  enum Kind { kKernel, kCopy, kFill } kind = kKernel;
  unsigned long long ticket = 0;
  int device = 0;
  std::string name;
  double start_us = 0, end_us = 0;  // on the virtual clock
};
struct Observer {
  std::function<void(const QueuedWork&)> queued;  // by the thread that launches
  std::function<void(const FinishedWork&)> finished;
  std::function<void(unsigned long long node)> node_made;  // by the thread that captures
  std::function<void(unsigned long long node, unsigned long long original)> node_cloned;
};
void observe(Observer observer);  // {}: nobody listens
double virtual_microseconds();

// Lets host threads that wait for a stream look at `ready` again.
void wake_waiting_operations();

// Consulted by the fakes for their own planned failures: true when this call of `name` is one that fail_next() named.
bool planned_failure(const char* name, int* code);

// The device whose stream this is; the current device for the default streams. -1: not a stream.
int device_of_stream(cudaStream_t stream);
bool is_capturing(cudaStream_t stream);
}  // namespace emu
