// All that the fake runtime remembers: devices, allocations, streams, events, graphs, captures, errors. One process has
// one CUDA runtime, so there is one Runtime, guarded by one lock that every API call holds (api.h).
#pragma once
#include <array>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "emulator/runtime/control.h"
#include "emulator/runtime/queue.h"

namespace emu {
struct Capture;
}
// The objects behind CUDA's handles; their names are fixed by the real headers.
struct CUstream_st {
  int device = 0;
  unsigned long long id = 0;
  void* made_at = nullptr;  // return address of the creating call, for leaks
  emu::TaskPtr tail;        // the last task; the next one comes after it
  emu::Capture* capture = nullptr;
  std::vector<CUgraphNode_st*> capture_tail;
};
struct CUevent_st {
  int device = 0;
  unsigned flags = 0;
  void* made_at = nullptr;
  enum State { kNever, kRecorded, kCaptured } state = kNever;  // how it was last recorded
  emu::TaskPtr task;                                           // kRecorded
  emu::Capture* capture = nullptr;                             // kCaptured, until the capture ends
  std::vector<CUgraphNode_st*> capture_nodes;
};
struct CUgraphNode_st {
  CUgraph_st* graph = nullptr;
  uint64_t id = 0;  // as profilers count
  int device = 0;
  emu::Action action;
  std::vector<CUgraphNode_st*> after;
};
struct CUgraph_st {
  std::vector<std::unique_ptr<CUgraphNode_st>> nodes;  // in an order that respects the edges
  void* made_at = nullptr;
  emu::Capture* capture = nullptr;  // while it is being captured
};
struct CUgraphExec_st {
  struct Node {
    uint64_t own_id = 0;  // as profilers count
    int device = 0;
    emu::Action action;
    std::vector<size_t> after;  // indices of nodes
  };
  std::vector<Node> nodes;
  void* made_at = nullptr;
  emu::TaskPtr last;  // the end of the latest launch: launches of one executable graph never overlap
};
namespace emu {

enum class MemoryKind { kDevice, kPinned };
struct Allocation {
  size_t bytes = 0;
  MemoryKind kind = MemoryKind::kDevice;
  int device = 0;  // current device at the call for host memory
  const char* api = "";
  void* made_at = nullptr;
};

// Addresses are handed out upwards and used again only when all have been used, oldest first, so that a use after free
// does not hit a new object.
struct AddressSpace {
  uint8_t* base = nullptr;
  size_t size = 0, used = 0;
  struct Hole {
    uint8_t* begin;
    size_t bytes;
  };
  std::deque<Hole> holes;
  size_t hole_bytes = 0;
};

struct Device {
  GpuModel model;
  size_t memory_limit = 0, memory_used = 0;
  CUstream_st legacy;  // the default stream
};

struct Capture {
  unsigned long long id = 0;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread;
  cudaStream_t origin = nullptr;
  std::vector<cudaStream_t> streams;  // the origin and all that joined
  std::unique_ptr<CUgraph_st> graph;
  cudaError_t broken = cudaSuccess;  // an operation that captures do not allow ended it
};

// A copy between pinned memory and a device that the host does not know to be finished: the buffer must not change.
struct PinnedGuard {
  uint8_t* begin = nullptr;
  std::vector<uint8_t> expected;
  TaskPtr task;
  bool source = true;  // false: the copy writes the buffer
};

struct PlannedFailure {
  std::string api;
  int calls_left = 0;
  int code = 0;
};

struct Runtime {
  std::recursive_mutex mutex;
  std::condition_variable_any progress;
  std::vector<Device> devices;
  std::array<AddressSpace, kMaxDevices> device_addresses;
  AddressSpace pinned_addresses;
  std::map<uint8_t*, Allocation> allocations;
  std::map<uint8_t*, std::string> freed;  // descriptions of freed memory, for messages about uses after free
  std::map<cudaStream_t, std::unique_ptr<CUstream_st>> streams;
  std::map<cudaEvent_t, std::unique_ptr<CUevent_st>> events;
  std::map<cudaGraph_t, std::unique_ptr<CUgraph_st>> graphs;
  std::map<cudaGraphExec_t, std::unique_ptr<CUgraphExec_st>> executables;
  std::vector<std::unique_ptr<Capture>> captures;
  std::map<const void*, Kernel> kernels;
  std::vector<PinnedGuard> guards;
  Queue queue;
  cudaError_t sticky = cudaSuccess;
  std::vector<PlannedFailure> planned;
  std::function<void(const std::string& kernel, const LaunchShape&)> launches_told_to;  // if any, no kernel runs
  std::string explanation;  // of the latest error that the runtime itself returned
  uint64_t next_object = 1;
  bool memory_open = false;
};
Runtime& runtime();
}  // namespace emu
