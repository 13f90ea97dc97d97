// Streams: handles, and waiting for them. All are made with cudaStreamNonBlocking, so that none is ordered with the
// default stream.
#include <algorithm>

#include "emulator/runtime/api.h"

namespace emu {
namespace {
cudaError_t create(cudaStream_t* out, unsigned flags, void* caller) {
  Runtime& rt = runtime();
  int device = current_device();
  if (cudaError_t error = check_device(device); error != cudaSuccess) return error;
  if (out == nullptr) return refuse(cudaErrorInvalidValue, "cudaStreamCreate: no place for the handle");
  if (flags != cudaStreamNonBlocking) return not_emulated("a stream with other flags", "cudaStreamNonBlocking is");
  auto stream = std::make_unique<CUstream_st>();
  stream->device = device;
  stream->id = rt.next_object++;
  stream->made_at = caller;
  *out = stream.get();
  rt.streams[*out] = std::move(stream);
  return cudaSuccess;
}

cudaError_t refuse_captured(CUstream_st& stream, const char* name) {
  if (stream.capture == nullptr) return cudaSuccess;
  return break_capture(*stream.capture, cudaErrorStreamCaptureUnsupported,
                       std::string(name) + " of a stream that is being captured");
}

template <class Body>
cudaError_t with_stream(const char* name, unsigned need, cudaStream_t handle, Body&& body) {
  return api(name, need, [&](Runtime& rt) {
    CUstream_st* stream = find_stream(handle, name);
    return stream == nullptr ? cudaErrorInvalidResourceHandle : body(rt, *stream);
  });
}
}  // namespace

bool is_legacy(const CUstream_st& stream) { return &stream == &runtime().devices[size_t(stream.device)].legacy; }

CUstream_st* find_stream(cudaStream_t handle, const char* name) {
  Runtime& rt = runtime();
  int device = current_device();
  if (check_device(device) != cudaSuccess) return nullptr;
  if (handle == nullptr || handle == cudaStreamLegacy) return &rt.devices[size_t(device)].legacy;
  auto found = rt.streams.find(handle);
  if (found != rt.streams.end()) return found->second.get();
  for (Device& other : rt.devices) {
    if (&other.legacy == handle) return handle;
  }
  refuse(cudaErrorInvalidResourceHandle, std::string(name) + ": not a stream, or one that was destroyed");
  return nullptr;
}

cudaError_t enqueue_after(CUstream_st& stream, Action action, const TaskPtr& also, TaskPtr* task) {
  if (stream.capture != nullptr) return add_captured_node(stream, std::move(action));
  const auto* kernel = std::get_if<KernelAction>(&action);
  const bool programmatic = kernel != nullptr && kernel->shape.programmatic;
  stream.tail = add_task({.device = stream.device,
                          .action = std::move(action),
                          .after = {stream.tail, also},
                          .overlapped = programmatic ? stream.tail : nullptr,
                          .stream = stream.id});
  if (task != nullptr) *task = stream.tail;
  return cudaSuccess;
}

cudaError_t enqueue(CUstream_st& stream, Action action, TaskPtr* task) {
  return enqueue_after(stream, std::move(action), nullptr, task);
}

void wait_for_stream(CUstream_st& stream) { host_waits_for(stream.tail); }

cudaError_t enqueue_operation(cudaStream_t handle, LibraryOperation operation, unsigned long long* ticket) {
  std::unique_lock lock(runtime().mutex);
  if (ticket != nullptr) *ticket = 0;
  if (cudaError_t error = asynchronous(); error != cudaSuccess) return error;
  CUstream_st* stream = find_stream(handle, operation.name.c_str());
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  TaskPtr task;
  cudaError_t error = enqueue(*stream, std::move(operation), &task);
  if (ticket != nullptr && task != nullptr) *ticket = task->ticket;
  close_memory();
  return error;
}

void wake_waiting_operations() { runtime().progress.notify_all(); }

int device_of_stream(cudaStream_t handle) {
  std::unique_lock lock(runtime().mutex);
  const CUstream_st* stream = find_stream(handle, "device_of_stream");
  return stream == nullptr ? -1 : stream->device;
}

bool is_capturing(cudaStream_t handle) {
  std::unique_lock lock(runtime().mutex);
  const CUstream_st* stream = find_stream(handle, "is_capturing");
  return stream != nullptr && stream->capture != nullptr;
}
}  // namespace emu

using emu::api;
using emu::refuse;
using emu::Runtime;
using emu::with_stream;

extern "C" {
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  void* caller = EMU_CALLER;
  return api("cudaStreamCreateWithFlags", emu::kOrdinary, [&](Runtime&) { return emu::create(stream, flags, caller); });
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {  // a hint: time does not exist
  void* caller = EMU_CALLER;
  return api("cudaStreamCreateWithPriority", emu::kOrdinary,
             [&](Runtime&) { return emu::create(stream, flags, caller); });
}
cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  return with_stream("cudaStreamDestroy", emu::kOrdinary, handle, [&](Runtime& rt, CUstream_st& stream) {
    if (stream.capture != nullptr) {
      return emu::break_capture(*stream.capture, cudaErrorStreamCaptureUnsupported,
                                "cudaStreamDestroy of a stream that is being captured");
    }
    if (rt.streams.erase(handle) == 0) {
      return refuse(cudaErrorInvalidResourceHandle, "cudaStreamDestroy: default streams are never destroyed");
    }
    return cudaSuccess;  // its work goes on
  });
}
cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  return with_stream("cudaStreamSynchronize", emu::kUnsafeInCapture, handle, [&](Runtime&, CUstream_st& stream) {
    if (cudaError_t error = emu::refuse_captured(stream, "cudaStreamSynchronize"); error != cudaSuccess) return error;
    emu::wait_for_stream(stream);
    return emu::asynchronous();
  });
}
cudaError_t cudaStreamQuery(cudaStream_t handle) {
  return with_stream("cudaStreamQuery", emu::kUnsafeInCapture, handle, [&](Runtime&, CUstream_st& stream) {
    if (cudaError_t error = emu::refuse_captured(stream, "cudaStreamQuery"); error != cudaSuccess) return error;
    emu::run_some_tasks();
    if (stream.tail != nullptr) {
      if (!stream.tail->done) return emu::asynchronous() == cudaSuccess ? cudaErrorNotReady : emu::asynchronous();
      emu::host_knows_finished(stream.tail);
    }
    return emu::asynchronous();
  });
}
cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event_handle, unsigned flags) {
  return with_stream("cudaStreamWaitEvent", emu::kOrdinary, handle, [&](Runtime&, CUstream_st& stream) {
    CUevent_st* event = emu::find_event(event_handle, "cudaStreamWaitEvent");
    if (event == nullptr) return cudaErrorInvalidResourceHandle;
    if (flags != cudaEventWaitDefault) {
      return emu::not_emulated("cudaStreamWaitEvent with cudaEventWaitExternal", "wait outside the capture");
    }
    return emu::stream_waits_for(stream, *event);
  });
}
}
