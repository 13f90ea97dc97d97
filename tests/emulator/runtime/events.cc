// Events: records, waits and times. Times are those of the virtual clock (queue.h), so that they depend on
// what was queued and not on this machine.
#include "emulator/runtime/api.h"

namespace emu {
namespace {
cudaError_t create(cudaEvent_t* out, unsigned flags, void* caller) {
  Runtime& rt = runtime();
  if (cudaError_t error = check_device(current_device()); error != cudaSuccess) return error;
  if (out == nullptr) return refuse(cudaErrorInvalidValue, "cudaEventCreate: no place for the handle");
  if ((flags & ~unsigned(cudaEventBlockingSync | cudaEventDisableTiming)) != 0) {
    return refuse(cudaErrorInvalidValue, "cudaEventCreateWithFlags: unknown flags " + std::to_string(flags));
  }
  auto event = std::make_unique<CUevent_st>();
  event->device = current_device();
  event->flags = flags;
  event->made_at = caller;
  *out = event.get();
  rt.events[*out] = std::move(event);
  return cudaSuccess;
}

cudaError_t record(CUevent_st& event, CUstream_st& stream) {
  if (event.device != stream.device) {
    return refuse(cudaErrorInvalidResourceHandle, "cudaEventRecord: the event is of device " +
                                                      std::to_string(event.device) + ", the stream of device " +
                                                      std::to_string(stream.device));
  }
  if (stream.capture != nullptr) {
    if (stream.capture->broken != cudaSuccess) return cudaErrorStreamCaptureInvalidated;
    event.state = CUevent_st::kCaptured;
    event.capture = stream.capture;
    event.capture_nodes = stream.capture_tail;
    event.task = nullptr;
    return cudaSuccess;
  }
  TaskPtr task;
  if (cudaError_t error = enqueue(stream, EmptyAction{"cudaEventRecord"}, &task); error != cudaSuccess) return error;
  event.state = CUevent_st::kRecorded;
  event.capture = nullptr;
  event.capture_nodes.clear();
  event.task = task;
  return cudaSuccess;
}

// No wait is possible for an event that lives in a capture.
cudaError_t refuse_captured(const CUevent_st& event, const char* name) {
  if (event.state != CUevent_st::kCaptured) return cudaSuccess;
  std::string why = std::string(name) + " on an event that was last recorded in a stream being captured";
  if (event.capture != nullptr) return break_capture(*event.capture, cudaErrorCapturedEvent, why);
  return refuse(cudaErrorCapturedEvent, why);
}

template <class Body>
cudaError_t with_event(const char* name, unsigned need, cudaEvent_t handle, Body&& body) {
  return api(name, need, [&](Runtime& rt) {
    CUevent_st* event = find_event(handle, name);
    return event == nullptr ? cudaErrorInvalidResourceHandle : body(rt, *event);
  });
}

cudaError_t check_timed(const CUevent_st& event, const char* which) {
  std::string subject = std::string("cudaEventElapsedTime: the ") + which + " event ";
  if ((event.flags & cudaEventDisableTiming) != 0) {
    return refuse(cudaErrorInvalidResourceHandle, subject + "was made with cudaEventDisableTiming");
  }
  if (event.state == CUevent_st::kNever) {
    return refuse(cudaErrorInvalidResourceHandle, subject + "was never recorded");
  }
  if (event.state == CUevent_st::kCaptured) {
    return refuse(cudaErrorInvalidResourceHandle, subject + "was last recorded in a captured stream");
  }
  return event.task->done ? cudaSuccess : refuse(cudaErrorNotReady, subject + "has not happened yet");
}
}  // namespace

CUevent_st* find_event(cudaEvent_t handle, const char* name) {
  auto found = runtime().events.find(handle);
  if (found != runtime().events.end()) return found->second.get();
  refuse(cudaErrorInvalidResourceHandle, std::string(name) + ": not an event, or one that was destroyed");
  return nullptr;
}

cudaError_t stream_waits_for(CUstream_st& stream, CUevent_st& event) {
  if (event.state == CUevent_st::kNever) return cudaSuccess;  // "acts as if there is nothing to wait for"
  if (event.state == CUevent_st::kCaptured) return join_capture(stream, event);
  if (stream.capture != nullptr) {
    return break_capture(*stream.capture, cudaErrorStreamCaptureIsolation,
                         "cudaStreamWaitEvent: a captured stream waits for an event recorded outside the capture");
  }
  return enqueue_after(stream, EmptyAction{"cudaStreamWaitEvent"}, event.task, nullptr);
}
}  // namespace emu

using emu::api;
using emu::refuse;
using emu::Runtime;
using emu::with_event;

extern "C" {
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  void* caller = EMU_CALLER;
  return api("cudaEventCreate", emu::kOrdinary, [&](Runtime&) { return emu::create(event, 0, caller); });
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  void* caller = EMU_CALLER;
  return api("cudaEventCreateWithFlags", emu::kOrdinary, [&](Runtime&) { return emu::create(event, flags, caller); });
}
cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  return with_event("cudaEventDestroy", emu::kOrdinary, handle, [&](Runtime& rt, CUevent_st&) {
    rt.events.erase(handle);
    return cudaSuccess;
  });
}
cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream_handle) {
  return with_event("cudaEventRecord", emu::kOrdinary, handle, [&](Runtime&, CUevent_st& event) {
    CUstream_st* stream = emu::find_stream(stream_handle, "cudaEventRecord");
    return stream == nullptr ? cudaErrorInvalidResourceHandle : emu::record(event, *stream);
  });
}
cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  return with_event("cudaEventSynchronize", emu::kUnsafeInCapture, handle, [&](Runtime&, CUevent_st& event) {
    if (cudaError_t error = emu::refuse_captured(event, "cudaEventSynchronize"); error != cudaSuccess) return error;
    emu::host_waits_for(event.task);
    return emu::asynchronous();
  });
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start_handle, cudaEvent_t end_handle) {
  return with_event("cudaEventElapsedTime", emu::kOrdinary, start_handle, [&](Runtime&, CUevent_st& start) {
    CUevent_st* end = emu::find_event(end_handle, "cudaEventElapsedTime");
    if (end == nullptr) return cudaErrorInvalidResourceHandle;
    if (milliseconds == nullptr) return refuse(cudaErrorInvalidValue, "cudaEventElapsedTime: no place for the result");
    if (start.device != end->device) {
      return refuse(cudaErrorInvalidResourceHandle, "cudaEventElapsedTime: the events are of different devices");
    }
    if (cudaError_t error = emu::check_timed(start, "start"); error != cudaSuccess) return error;
    if (cudaError_t error = emu::check_timed(*end, "end"); error != cudaSuccess) return error;
    *milliseconds = float((end->task->end_us - start.task->end_us) / 1000);
    return cudaSuccess;
  });
}
}
