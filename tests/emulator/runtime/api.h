// What every entry point of the fake runtime does around its own work: takes the lock, applies planned failures, sticky
// errors and the rules of stream capture, and records the result for cudaGetLastError().
#pragma once
#include <mutex>
#include <string>
#include <utility>

#include "emulator/runtime/state.h"
namespace emu {

enum Need : unsigned {
  kOrdinary = 0,
  kUnsafeInCapture = 1,  // may synchronise or allocate: forbidden while a capture forbids it to this thread
  kEvenIfBroken = 2,     // touches no context: works after a sticky error
};
cudaError_t enter(const char* name, unsigned need);
cudaError_t leave(cudaError_t error);

template <class Body>
cudaError_t api(const char* name, unsigned need, Body&& body) {
  std::unique_lock lock(runtime().mutex);
  cudaError_t error = enter(name, need);
  if (error == cudaSuccess) error = body(runtime());
  return leave(error);
}
// The call site of the function that this is expanded in, for reports of leaks.
#define EMU_CALLER __builtin_return_address(0)

// ---- errors.cc
// Returns `error` and keeps the words for explanation(): what was asked, what is allowed, the actual values.
cudaError_t refuse(cudaError_t error, std::string why);
// A feature that is not emulated: the words also go to stderr, for a program that only looks at the code.
cudaError_t not_emulated(const char* name, const char* instead);
bool is_sticky(cudaError_t error);
void adopt_fault();          // a fault that the device half reported becomes the sticky error
cudaError_t asynchronous();  // the result of a call that has waited: the sticky error, if any
void set_last_error(cudaError_t error);

// ---- memory_access.cc
void open_memory();                      // until the next close_memory(): host code may touch device memory
bool explain_host_fault(void* address);  // for set_host_fault_handler()
void close_memory();                     // at the end of each API call and while waiting for other threads

// ---- allocations.cc
uint8_t* allocate(int device, size_t bytes, MemoryKind kind, const char* name, void* caller);  // null: out of memory
cudaError_t release(void* address, const char* name);  // the memory is gone from now on
Allocation* find_allocation(const void* address,
                            uint8_t** begin = nullptr);  // the allocation that holds this byte, or null
std::string describe_address(const void* address);
bool is_host_memory(const void* address);  // pageable or pinned
bool is_pageable(const void* address);
void release_all();
uint8_t* place(AddressSpace& space, size_t bytes);
void drop_freed_notes();

// ---- pinned_guards.cc
void guard_pinned(const TaskPtr& task, const CopyAction& copy);
void verify_guards();         // did the host change a buffer that a copy still needs?
void renew_guards();          // after an operation that was allowed to change buffers
void release_known_guards();  // guards of copies that the host knows to be finished; verifies them first

// ---- devices.cc
int current_device();
void set_current_device(int device);
cudaError_t check_device(int device);

// ---- streams.cc
// The stream behind a handle; null after refuse() has been called with the reason.
CUstream_st* find_stream(cudaStream_t handle, const char* name);
// Puts work on a stream, or a node into the graph it is captured in; `task` is null in the latter case.
cudaError_t enqueue(CUstream_st& stream, Action action, TaskPtr* task = nullptr);
cudaError_t enqueue_after(CUstream_st& stream, Action action, const TaskPtr& also, TaskPtr* task);
void wait_for_stream(CUstream_st& stream);
bool is_legacy(const CUstream_st& stream);

// ---- events.cc
CUevent_st* find_event(cudaEvent_t handle, const char* name);
cudaError_t stream_waits_for(CUstream_st& stream, CUevent_st& event);

// ---- capture.cc
cudaError_t check_capture(const char* name);  // kUnsafeInCapture
cudaError_t break_capture(Capture& capture, cudaError_t error, std::string why);
cudaError_t join_capture(CUstream_st& stream, CUevent_st& event);  // the event was recorded in a captured stream
cudaError_t add_captured_node(CUstream_st& stream, Action action);
Capture* capture_of_device(int device);  // any that is running, for device-wide synchronisation

// ---- graphs.cc
CUgraphNode_st* add_node(CUgraph_st& graph, int device, Action action, const std::vector<CUgraphNode_st*>& after);
CUgraph_st* find_graph(cudaGraph_t handle, const char* name);
CUgraphExec_st* find_executable(cudaGraphExec_t handle, const char* name);
size_t index_of(const CUgraphNode_st& node);  // within its graph

// ---- launch.cc
Kernel& known_kernel(const void* function);
}  // namespace emu
