// Calls of the driver API: programs reach them through cudaGetDriverEntryPoint, so that nothing links to libcuda.
#include <cuda.h>

#include <cstdio>
#include <cstring>

#include "emulator/runtime/api.h"

namespace emu {
namespace {
cudaError_t give_entry_point(const char* symbol, void** out, cudaDriverEntryPointQueryResult* status) {
  if (symbol == nullptr || out == nullptr)
    return refuse(cudaErrorInvalidValue, "cudaGetDriverEntryPoint: null argument");
  const bool known = strcmp(symbol, "cuTensorMapEncodeTiled") == 0;
  *out = known ? reinterpret_cast<void*>(&cuTensorMapEncodeTiled) : nullptr;
  if (status != nullptr) *status = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  if (!known) not_emulated((std::string(symbol) + " of the driver").c_str(), "cuTensorMapEncodeTiled is");
  return cudaSuccess;  // the status tells
}
}  // namespace
}  // namespace emu

extern "C" {
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** out, unsigned version, unsigned long long,
                                             cudaDriverEntryPointQueryResult* status) {
  return emu::api("cudaGetDriverEntryPointByVersion", emu::kEvenIfBroken, [&](emu::Runtime&) {
    if (version > CUDART_VERSION) {  // newer than the headers that the emulator was built with
      if (out != nullptr) *out = nullptr;
      if (status != nullptr) *status = cudaDriverEntryPointVersionNotSufficent;
      return cudaSuccess;
    }
    return emu::give_entry_point(symbol, out, status);
  });
}
}
