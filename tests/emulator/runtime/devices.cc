// Choosing devices and asking about them.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "emulator/runtime/api.h"

namespace emu {
namespace {
// "the device ... for the calling host thread" (cudaSetDevice): the documentation demands one per thread.
thread_local int thread_device = 0;

std::string pci_name(int device) {
  char text[32];
  snprintf(text, sizeof text, "0000:%02x:00.0", 0x10 + device);
  return text;
}

}  // namespace

int current_device() { return thread_device; }
void set_current_device(int device) { thread_device = device; }

cudaError_t check_device(int device) {
  size_t count = runtime().devices.size();
  if (count == 0) return refuse(cudaErrorNoDevice, "there is no simulated GPU: simulate({}) was called");
  if (device >= 0 && size_t(device) < count) return cudaSuccess;
  return refuse(cudaErrorInvalidDevice, "device " + std::to_string(device) + " of " + std::to_string(count));
}
}  // namespace emu

using emu::api;
using emu::refuse;
using emu::Runtime;

extern "C" {
cudaError_t cudaGetDeviceCount(int* count) {
  return api("cudaGetDeviceCount", emu::kEvenIfBroken, [&](Runtime& rt) {
    if (count == nullptr) return cudaErrorInvalidValue;
    *count = int(rt.devices.size());
    return *count == 0 ? emu::check_device(0) : cudaSuccess;
  });
}
cudaError_t cudaSetDevice(int device) {
  return api("cudaSetDevice", emu::kEvenIfBroken, [&](Runtime&) {
    cudaError_t error = emu::check_device(device);
    if (error == cudaSuccess) emu::set_current_device(device);
    return error;
  });
}
cudaError_t cudaGetDevice(int* device) {
  return api("cudaGetDevice", emu::kEvenIfBroken, [&](Runtime&) {
    if (device == nullptr) return cudaErrorInvalidValue;
    *device = emu::current_device();
    return emu::check_device(*device);
  });
}
cudaError_t cudaDeviceSynchronize() {
  return api("cudaDeviceSynchronize", emu::kUnsafeInCapture, [&](Runtime&) {
    int device = emu::current_device();
    if (cudaError_t error = emu::check_device(device); error != cudaSuccess) return error;
    if (emu::Capture* capture = emu::capture_of_device(device)) {
      return emu::break_capture(*capture, cudaErrorStreamCaptureUnsupported,
                                "cudaDeviceSynchronize while a stream of the device is being captured");
    }
    emu::host_waits_for_device(device);
    return emu::asynchronous();
  });
}
cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  return api("cudaDeviceGetPCIBusId", emu::kEvenIfBroken, [&](Runtime&) {
    if (cudaError_t error = emu::check_device(device); error != cudaSuccess) return error;
    std::string name = emu::pci_name(device);
    if (text == nullptr || size_t(length) <= name.size()) return cudaErrorInvalidValue;
    memcpy(text, name.c_str(), name.size() + 1);
    return cudaSuccess;
  });
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return api("cudaDeviceGetStreamPriorityRange", emu::kOrdinary, [&](Runtime&) {
    if (least != nullptr) *least = 0;
    if (greatest != nullptr) *greatest = -5;  // as devices of compute capability 7.0 and later report
    return emu::check_device(emu::current_device());
  });
}

cudaError_t cudaDriverGetVersion(int* version) {
  return api("cudaDriverGetVersion", emu::kEvenIfBroken, [&](Runtime&) {
    if (version == nullptr) return cudaErrorInvalidValue;
    *version = CUDART_VERSION;
    return cudaSuccess;
  });
}
}
