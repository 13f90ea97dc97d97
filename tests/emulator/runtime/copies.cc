// Copies and fills. What returns before its work is done, and what waits, follows "API synchronization behavior" in the
// CUDA Runtime API: pageable sources are staged at the call, pageable destinations wait, pinned memory does neither.
#include <cstring>

#include "emulator/runtime/api.h"

namespace emu {
namespace {
struct CopyRequest {
  const char* name;
  void* to;
  const void* from;
  size_t bytes;
  cudaMemcpyKind kind;
};

// Memory of the runtime must be one allocation from the first byte to the last.
cudaError_t check_range(const char* name, const char* role, const void* begin, size_t bytes) {
  if (!in_arena(begin)) return cudaSuccess;
  uint8_t* start = nullptr;
  const Allocation* held = find_allocation(begin, &start);
  const auto* first = static_cast<const uint8_t*>(begin);
  if (held != nullptr && first + bytes <= start + held->bytes) return cudaSuccess;
  return refuse(cudaErrorInvalidValue, std::string(name) + ": the " + role + " of " + std::to_string(bytes) +
                                           " bytes is not within one allocation: " + describe_address(begin));
}

cudaError_t check_direction(const CopyRequest& r) {
  const bool to_host = is_host_memory(r.to), from_host = is_host_memory(r.from);
  bool want_to_host = to_host, want_from_host = from_host;
  switch (r.kind) {
    case cudaMemcpyHostToHost:
      want_to_host = want_from_host = true;
      break;
    case cudaMemcpyHostToDevice:
      want_to_host = false, want_from_host = true;
      break;
    case cudaMemcpyDeviceToHost:
      want_to_host = true, want_from_host = false;
      break;
    case cudaMemcpyDeviceToDevice:
      want_to_host = want_from_host = false;
      break;
    case cudaMemcpyDefault:
      break;
    default:
      return refuse(cudaErrorInvalidMemcpyDirection, std::string(r.name) + ": unknown kind of copy");
  }
  if (to_host == want_to_host && from_host == want_from_host) return cudaSuccess;
  return refuse(cudaErrorInvalidValue, std::string(r.name) + ": the kind of copy does not match the memory: from " +
                                           describe_address(r.from) + " to " + describe_address(r.to));
}

cudaError_t check_copy(const CopyRequest& r) {
  if (r.to == nullptr || r.from == nullptr)
    return refuse(cudaErrorInvalidValue, std::string(r.name) + ": null pointer");
  if (cudaError_t error = check_direction(r); error != cudaSuccess) return error;
  if (cudaError_t error = check_range(r.name, "destination", r.to, r.bytes); error != cudaSuccess) return error;
  return check_range(r.name, "source", r.from, r.bytes);
}

cudaError_t copy_on(CUstream_st& stream, const CopyRequest& r, TaskPtr* task) {
  if (r.bytes == 0) return cudaSuccess;
  if (cudaError_t error = check_copy(r); error != cudaSuccess) return error;
  const auto* from = static_cast<const uint8_t*>(r.from);
  CopyAction action{.to = static_cast<uint8_t*>(r.to), .from = from, .bytes = r.bytes};
  const bool captured = stream.capture != nullptr;
  if (!captured && is_pageable(from)) action.staged = std::make_shared<std::vector<uint8_t>>(from, from + r.bytes);
  if (cudaError_t error = enqueue(stream, std::move(action), task); error != cudaSuccess) return error;
  if (!captured && is_pageable(r.to)) {
    host_waits_for(*task);
    return asynchronous();
  }
  return cudaSuccess;
}

cudaError_t copy_async(const CopyRequest& r, cudaStream_t handle) {
  return api(r.name, kOrdinary, [&](Runtime&) {
    CUstream_st* stream = find_stream(handle, r.name);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    TaskPtr task;
    return copy_on(*stream, r, &task);
  });
}

// cudaMemcpy: on the legacy stream. Copies within devices, and staged ones, are not waited for.
cudaError_t copy_now(const CopyRequest& r) {
  return api(r.name, kUnsafeInCapture, [&](Runtime&) {
    CUstream_st* stream = find_stream(nullptr, r.name);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    TaskPtr task;
    if (cudaError_t error = copy_on(*stream, r, &task); error != cudaSuccess || task == nullptr) return error;
    const bool within_devices = !is_host_memory(r.to) && !is_host_memory(r.from);
    const bool staged = !is_host_memory(r.to) && is_pageable(r.from);
    if (!within_devices && !staged) host_waits_for(task);
    return asynchronous();
  });
}

struct FillRequest {
  const char* name;
  void* to;
  size_t pitch;
  int value;
  size_t width, height;
};

cudaError_t fill_on(CUstream_st& stream, const FillRequest& r, TaskPtr* task) {
  if (r.width == 0 || r.height == 0) return cudaSuccess;
  if (!in_arena(r.to)) {
    return refuse(cudaErrorInvalidValue,
                  std::string(r.name) + ": neither device nor pinned memory: " + describe_address(r.to));
  }
  if (r.height > 1 && r.pitch < r.width) {
    return refuse(cudaErrorInvalidPitchValue, std::string(r.name) + ": the pitch is smaller than the width");
  }
  if (cudaError_t error = check_range(r.name, "destination", r.to, (r.height - 1) * r.pitch + r.width);
      error != cudaSuccess) {
    return error;
  }
  FillAction action;
  action.to = static_cast<uint8_t*>(r.to);
  action.pitch = r.pitch;
  action.value = unsigned(r.value) & 0xff;
  action.width = r.width;
  action.height = r.height;
  return enqueue(stream, action, task);
}

cudaError_t fill_async(const FillRequest& r, cudaStream_t handle) {
  return api(r.name, kOrdinary, [&](Runtime&) {
    CUstream_st* stream = find_stream(handle, r.name);
    return stream == nullptr ? cudaErrorInvalidResourceHandle : fill_on(*stream, r, nullptr);
  });
}

cudaError_t fill_now(const FillRequest& r) {
  return api(r.name, kUnsafeInCapture, [&](Runtime&) {
    CUstream_st* stream = find_stream(nullptr, r.name);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    TaskPtr task;
    if (cudaError_t error = fill_on(*stream, r, &task); error != cudaSuccess) return error;
    if (is_pinned(r.to)) host_waits_for(task);  // device memory: the host does not wait
    return asynchronous();
  });
}
}  // namespace
}  // namespace emu

extern "C" {
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return emu::copy_now({"cudaMemcpy", to, from, bytes, kind});
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return emu::copy_async({"cudaMemcpyAsync", to, from, bytes, kind}, stream);
}
cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  return emu::fill_now({"cudaMemset", to, bytes, value, bytes, 1});
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  return emu::fill_async({"cudaMemsetAsync", to, bytes, value, bytes, 1}, stream);
}
cudaError_t cudaMemset2DAsync(void* to, size_t pitch, int value, size_t width, size_t height, cudaStream_t stream) {
  return emu::fill_async({"cudaMemset2DAsync", to, pitch, value, width, height}, stream);
}
}
