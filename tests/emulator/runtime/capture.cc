// Stream capture: work becomes nodes of a graph instead of running. What a real capture refuses is refused with the
// same codes, and like there most of it invalidates the capture ("Prohibited and Unhandled Operations" in the CUDA C++
// Programming Guide).
#include <algorithm>

#include "emulator/runtime/api.h"

namespace emu {
namespace {
// Does this running capture forbid unsafe calls to the calling thread?
bool forbids(const Capture& capture) {
  if (capture.thread == std::this_thread::get_id()) return capture.mode != cudaStreamCaptureModeRelaxed;
  return capture.mode == cudaStreamCaptureModeGlobal;
}

cudaError_t begin(CUstream_st& stream, cudaStreamCaptureMode mode) {
  Runtime& rt = runtime();
  if (is_legacy(stream)) {
    return refuse(cudaErrorStreamCaptureUnsupported, "cudaStreamBeginCapture: the legacy stream cannot be captured");
  }
  if (stream.capture != nullptr) {
    return refuse(cudaErrorIllegalState, "cudaStreamBeginCapture: the stream is being captured already");
  }
  if (mode != cudaStreamCaptureModeGlobal && mode != cudaStreamCaptureModeThreadLocal &&
      mode != cudaStreamCaptureModeRelaxed) {
    return refuse(cudaErrorInvalidValue, "cudaStreamBeginCapture: unknown mode");
  }
  auto capture = std::make_unique<Capture>();
  capture->id = rt.next_object++;
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  capture->origin = &stream;
  capture->streams = {&stream};
  capture->graph = std::make_unique<CUgraph_st>();
  capture->graph->capture = capture.get();
  stream.capture = capture.get();
  stream.capture_tail.clear();
  rt.captures.push_back(std::move(capture));
  return cudaSuccess;
}

// True if the last nodes of the origin stream depend on every captured node, as cudaStreamEndCapture requires.
bool all_joined(const Capture& capture) {
  std::vector<const CUgraphNode_st*> todo(capture.origin->capture_tail.begin(), capture.origin->capture_tail.end());
  std::vector<const CUgraphNode_st*> seen;
  while (!todo.empty()) {
    const CUgraphNode_st* node = todo.back();
    todo.pop_back();
    if (std::find(seen.begin(), seen.end(), node) != seen.end()) continue;
    seen.push_back(node);
    todo.insert(todo.end(), node->after.begin(), node->after.end());
  }
  return seen.size() == capture.graph->nodes.size();
}

// Takes all streams out of the capture and gives its graph away.
std::unique_ptr<CUgraph_st> dissolve(Capture& capture) {
  Runtime& rt = runtime();
  std::unique_ptr<CUgraph_st> graph = std::move(capture.graph);
  graph->capture = nullptr;
  for (cudaStream_t stream : capture.streams) {
    stream->capture = nullptr;
    stream->capture_tail.clear();
  }
  for (auto& [handle, event] : rt.events) {
    if (event->capture == &capture) event->capture = nullptr;
  }
  std::erase_if(rt.captures, [&](const std::unique_ptr<Capture>& c) { return c.get() == &capture; });
  return graph;
}

cudaError_t end(CUstream_st& stream, cudaGraph_t* out, void* caller) {
  Runtime& rt = runtime();
  if (out == nullptr) return refuse(cudaErrorInvalidValue, "cudaStreamEndCapture: no place for the graph");
  *out = nullptr;
  if (stream.capture == nullptr) {
    return refuse(cudaErrorIllegalState, "cudaStreamEndCapture: the stream is not being captured");
  }
  Capture& capture = *stream.capture;
  if (capture.origin != &stream) {
    return break_capture(capture, cudaErrorStreamCaptureUnmatched,
                         "cudaStreamEndCapture: the capture began in another stream, end it there");
  }
  if (capture.mode != cudaStreamCaptureModeRelaxed && capture.thread != std::this_thread::get_id()) {
    return refuse(cudaErrorStreamCaptureWrongThread,
                  "cudaStreamEndCapture: only a relaxed capture can be ended by another thread");
  }
  const bool broken = capture.broken != cudaSuccess;
  const bool joined = all_joined(capture);
  std::unique_ptr<CUgraph_st> graph = dissolve(capture);
  if (broken) {
    return refuse(cudaErrorStreamCaptureInvalidated,
                  "cudaStreamEndCapture: an earlier call broke the capture: " + rt.explanation);
  }
  if (!joined) {
    return refuse(cudaErrorStreamCaptureUnjoined,
                  "cudaStreamEndCapture: work of a stream that joined the capture never came back to the first stream; "
                  "record an event there and let the first stream wait for it");
  }
  graph->made_at = caller;
  *out = graph.get();
  rt.graphs[*out] = std::move(graph);
  return cudaSuccess;
}

// Pageable memory would be read or written at each replay, when it may long be gone.
bool copies_pageable(const Action& action) {
  const auto* copy = std::get_if<CopyAction>(&action);
  if (copy == nullptr) return false;
  return copy->staged != nullptr || is_pageable(copy->from) || is_pageable(copy->to);
}
}  // namespace

cudaError_t break_capture(Capture& capture, cudaError_t error, std::string why) {
  if (capture.broken == cudaSuccess) capture.broken = error;
  return refuse(error, std::move(why));
}

cudaError_t check_capture(const char* name) {
  for (auto& capture : runtime().captures) {
    if (!forbids(*capture)) continue;
    return break_capture(*capture, cudaErrorStreamCaptureUnsupported,
                         std::string(name) +
                             " while a stream is being captured: it may synchronise; do it before the " +
                             "capture, or capture in relaxed mode");
  }
  return cudaSuccess;
}

cudaError_t add_captured_node(CUstream_st& stream, Action action) {
  Capture& capture = *stream.capture;
  if (capture.broken != cudaSuccess) {
    return refuse(cudaErrorStreamCaptureInvalidated, "the capture of this stream has been broken before");
  }
  if (copies_pageable(action)) {
    return break_capture(capture, cudaErrorStreamCaptureUnsupported,
                         "a copy of pageable host memory is captured: use pinned memory");
  }
  stream.capture_tail = {add_node(*capture.graph, stream.device, std::move(action), stream.capture_tail)};
  return cudaSuccess;
}

cudaError_t join_capture(CUstream_st& stream, CUevent_st& event) {
  if (event.capture == nullptr) {
    return refuse(cudaErrorCapturedEvent,
                  "cudaStreamWaitEvent: the event was last recorded in a capture that has ended");
  }
  Capture& capture = *event.capture;
  if (capture.broken != cudaSuccess) {
    return refuse(cudaErrorStreamCaptureInvalidated, "cudaStreamWaitEvent: the event's capture has been broken before");
  }
  if (is_legacy(stream)) {
    return break_capture(capture, cudaErrorStreamCaptureImplicit,
                         "cudaStreamWaitEvent: the legacy stream joins a capture");
  }
  if (stream.capture != nullptr && stream.capture != &capture) {
    break_capture(*stream.capture, cudaErrorStreamCaptureMerge, "");
    return break_capture(capture, cudaErrorStreamCaptureMerge, "cudaStreamWaitEvent: would merge two captures");
  }
  if (stream.capture == nullptr) {
    stream.capture = &capture;
    stream.capture_tail.clear();
    capture.streams.push_back(&stream);
  }
  for (CUgraphNode_st* node : event.capture_nodes) {
    auto& tail = stream.capture_tail;
    if (std::find(tail.begin(), tail.end(), node) == tail.end()) tail.push_back(node);
  }
  return cudaSuccess;
}

Capture* capture_of_device(int device) {
  for (auto& capture : runtime().captures) {
    for (cudaStream_t stream : capture->streams) {
      if (stream->device == device) return capture.get();
    }
  }
  return nullptr;
}
}  // namespace emu

using emu::api;
using emu::Runtime;

extern "C" {
cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  return api("cudaStreamBeginCapture", emu::kOrdinary, [&](Runtime&) {
    CUstream_st* stream = emu::find_stream(handle, "cudaStreamBeginCapture");
    return stream == nullptr ? cudaErrorInvalidResourceHandle : emu::begin(*stream, mode);
  });
}
cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  void* caller = EMU_CALLER;
  return api("cudaStreamEndCapture", emu::kOrdinary, [&](Runtime&) {
    CUstream_st* stream = emu::find_stream(handle, "cudaStreamEndCapture");
    return stream == nullptr ? cudaErrorInvalidResourceHandle : emu::end(*stream, graph, caller);
  });
}
cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  return api("cudaStreamIsCapturing", emu::kOrdinary, [&](Runtime&) {
    CUstream_st* stream = emu::find_stream(handle, "cudaStreamIsCapturing");
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    if (status == nullptr) return cudaErrorInvalidValue;
    const emu::Capture* capture = stream->capture;
    *status = capture == nullptr               ? cudaStreamCaptureStatusNone
              : capture->broken == cudaSuccess ? cudaStreamCaptureStatusActive
                                               : cudaStreamCaptureStatusInvalidated;
    return cudaSuccess;
  });
}
}
