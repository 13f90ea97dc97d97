// The few calls of the driver API that programs reach through cudaGetDriverEntryPoint, so that nothing links to
// libcuda.
#include <cuda.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "emulator/runtime/api.h"

namespace emu {
namespace {
CUresult to_driver(cudaError_t error) { return CUresult(error); }  // the codes that are used here are the same numbers

struct DriverError {
  CUresult code;
  const char *name, *text;
};
constexpr DriverError kErrors[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};
const DriverError* find_error(CUresult code) {
  const auto* found =
      std::find_if(std::begin(kErrors), std::end(kErrors), [=](const auto& e) { return e.code == code; });
  return found == std::end(kErrors) ? nullptr : found;
}

template <class Function>
void* address_of(Function* function) {
  return reinterpret_cast<void*>(function);
}

// By the names without version suffixes, as cudaGetDriverEntryPoint takes them.
void* entry_point(const std::string& name) {
  if (name == "cuInit") return address_of(cuInit);
  if (name == "cuDriverGetVersion") return address_of(cuDriverGetVersion);
  if (name == "cuDeviceGet") return address_of(cuDeviceGet);
  if (name == "cuDeviceGetCount") return address_of(cuDeviceGetCount);
  if (name == "cuDeviceGetAttribute") return address_of(cuDeviceGetAttribute);
  if (name == "cuGetErrorName") return address_of(cuGetErrorName);
  if (name == "cuGetErrorString") return address_of(cuGetErrorString);
  if (name == "cuTensorMapEncodeTiled") return address_of(cuTensorMapEncodeTiled);
  return nullptr;
}

cudaError_t give_entry_point(const char* symbol, void** out, cudaDriverEntryPointQueryResult* status) {
  if (symbol == nullptr || out == nullptr)
    return refuse(cudaErrorInvalidValue, "cudaGetDriverEntryPoint: null argument");
  *out = entry_point(symbol);
  if (status != nullptr) *status = *out != nullptr ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  if (*out == nullptr) {
    std::string why = std::string(symbol) + " of the driver is not emulated: see runtime/driver.cc for those that are";
    fprintf(stderr, "emulator: %s\n", why.c_str());
    runtime().explanation = why;
  }
  return cudaSuccess;  // the status tells
}
}  // namespace
}  // namespace emu

using emu::Runtime;

extern "C" {
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** out, unsigned version, unsigned long long,
                                             cudaDriverEntryPointQueryResult* status) {
  return emu::api("cudaGetDriverEntryPointByVersion", emu::kEvenIfBroken, [&](Runtime&) {
    if (version > CUDART_VERSION) {  // newer than the headers that the emulator was built with
      if (out != nullptr) *out = nullptr;
      if (status != nullptr) *status = cudaDriverEntryPointVersionNotSufficent;
      return cudaSuccess;
    }
    return emu::give_entry_point(symbol, out, status);
  });
}

CUresult cuInit(unsigned flags) { return flags == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; }
CUresult cuDriverGetVersion(int* version) { return emu::to_driver(cudaDriverGetVersion(version)); }
CUresult cuDeviceGetCount(int* count) { return emu::to_driver(cudaGetDeviceCount(count)); }
CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  std::unique_lock lock(emu::runtime().mutex);
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *device = ordinal;
  return emu::to_driver(emu::check_device(ordinal));
}
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  // The two enumerations have the same numbers.
  return emu::to_driver(cudaDeviceGetAttribute(value, cudaDeviceAttr(int(attribute)), device));
}
CUresult cuGetErrorName(CUresult error, const char** name) {
  const emu::DriverError* found = emu::find_error(error);
  if (name == nullptr || found == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *name = found->name;
  return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult error, const char** text) {
  const emu::DriverError* found = emu::find_error(error);
  if (text == nullptr || found == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *text = found->text;
  return CUDA_SUCCESS;
}
}
