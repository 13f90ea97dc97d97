// The fakes' machine on the emulated GPU: calls of its runtime and nothing else; see machine.h.
#include "machine.h"

namespace emu::fakes {

Machine emulated_machine() {
  return {.enqueue = [](cudaStream_t stream,
                        LibraryOperation operation) { return enqueue_operation(stream, std::move(operation)); },
          .wake = [] { wake_waiting_operations(); },
          .progress = [](cudaStream_t stream) { return cudaStreamQuery(stream) != cudaErrorNotReady; },
          .is_capturing = [](cudaStream_t stream) { return is_capturing(stream); },
          .current_device =
              [] {
                int device = 0;
                cudaGetDevice(&device);
                return device;
              },
          .device_of_stream = [](cudaStream_t stream) { return device_of_stream(stream); },
          .describe =
              [](int device) {
                MachineDevice description;
                cudaDeviceGetAttribute(&description.major, cudaDevAttrComputeCapabilityMajor, device);
                cudaDeviceGetAttribute(&description.minor, cudaDevAttrComputeCapabilityMinor, device);
                cudaDeviceGetAttribute(&description.multiprocessors, cudaDevAttrMultiProcessorCount, device);
                if (description.major == 9) description.code_sum_bits = 14;
                return description;
              },
          .planned_failure = [](const char* function, int* code) { return planned_failure(function, code); },
          .allocate =
              [](size_t bytes) {
                void* memory = nullptr;
                return cudaMalloc(&memory, bytes) == cudaSuccess ? memory : nullptr;
              },
          .release = [](void* memory) { cudaFree(memory); },
          .observe = [](Observer observer) { observe(std::move(observer)); },
          .microseconds = [] { return virtual_microseconds(); }};
}

}  // namespace emu::fakes
