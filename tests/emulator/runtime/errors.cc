// Errors as the runtime keeps them: planned failures, the sticky error of a broken context, the last error of each host
// thread, and the words that explain a refusal.
#include <algorithm>
#include <cstdio>

#include "emulator/runtime/api.h"

namespace emu {
namespace {
// "the last error ... in the host thread" (CUDA Runtime API, Error Handling): the documentation demands one per thread.
thread_local cudaError_t last_error = cudaSuccess;

cudaError_t planned(const char* name) {
  int code = 0;
  if (!planned_failure(name, &code)) return cudaSuccess;
  runtime().explanation.clear();
  return cudaError_t(code);
}

cudaError_t code_of(Fault fault) {
  switch (fault) {
    case Fault::kBounds:
      return cudaErrorIllegalAddress;
    case Fault::kMisaligned:
      return cudaErrorMisalignedAddress;
    case Fault::kDeadlock:
      return cudaErrorLaunchTimeout;
    case Fault::kHost:
      return cudaErrorUnknown;
    default:
      return cudaErrorLaunchFailure;
  }
}
}  // namespace

void set_last_error(cudaError_t error) { last_error = error; }

// After these "the process must be terminated and relaunched" (driver_types.h says so at each).
bool is_sticky(cudaError_t error) {
  constexpr cudaError_t kSticky[] = {cudaErrorIllegalAddress,
                                     cudaErrorLaunchTimeout,
                                     cudaErrorAssert,
                                     cudaErrorHardwareStackError,
                                     cudaErrorIllegalInstruction,
                                     cudaErrorMisalignedAddress,
                                     cudaErrorInvalidAddressSpace,
                                     cudaErrorInvalidPc,
                                     cudaErrorLaunchFailure,
                                     cudaErrorMpsClientTerminated,
                                     cudaErrorExternalDevice,
                                     cudaErrorTensorMemoryLeak,
                                     cudaErrorECCUncorrectable,
                                     cudaErrorNvlinkUncorrectable,
                                     cudaErrorContained,
                                     cudaErrorUnknown};
  return std::find(std::begin(kSticky), std::end(kSticky), error) != std::end(kSticky);
}

void adopt_fault() {
  Runtime& rt = runtime();
  if (rt.sticky == cudaSuccess && faulted()) {
    rt.sticky = code_of(first_report().fault);
    rt.explanation = first_report().text;
  }
}

cudaError_t asynchronous() {
  adopt_fault();
  return runtime().sticky;
}

cudaError_t refuse(cudaError_t error, std::string why) {
  runtime().explanation = std::move(why);
  return error;
}

cudaError_t not_emulated(const char* name, const char* instead) {
  std::string why = std::string(name) + " is not emulated: " + instead;
  fprintf(stderr, "emulator: %s\n", why.c_str());
  return refuse(cudaErrorNotSupported, why);
}

cudaError_t enter(const char* name, unsigned need) {
  Runtime& rt = runtime();
  if (!(need & kEvenIfBroken)) {
    if (cudaError_t error = asynchronous(); error != cudaSuccess) return error;
  }
  if (cudaError_t error = planned(name); error != cudaSuccess) return error;
  rt.queue.host_us += 1;  // a call costs about a microsecond, on the virtual clock
  return need & kUnsafeInCapture ? check_capture(name) : cudaSuccess;
}

cudaError_t leave(cudaError_t error) {
  Runtime& rt = runtime();
  close_memory();
  if (rt.sticky == cudaSuccess && is_sticky(error)) rt.sticky = error;
  if (error != cudaSuccess) last_error = error;
  return error;
}

bool planned_failure(const char* name, int* code) {
  std::unique_lock lock(runtime().mutex);
  for (PlannedFailure& plan : runtime().planned) {
    if (plan.api != name || plan.calls_left == 0 || --plan.calls_left != 0) continue;
    *code = plan.code;
    return true;
  }
  return false;
}

void fail_next(const std::string& name, int nth, cudaError_t error) { fail_next(name, nth, int(error)); }
void fail_next(const std::string& name, int nth, int code) {
  std::unique_lock lock(runtime().mutex);
  runtime().planned.push_back({name, nth, code});
}

std::string explanation() {
  std::unique_lock lock(runtime().mutex);
  return runtime().explanation;
}
}  // namespace emu

extern "C" {
cudaError_t cudaGetLastError() {
  std::unique_lock lock(emu::runtime().mutex);
  cudaError_t error = emu::asynchronous();
  if (error == cudaSuccess) error = std::exchange(emu::last_error, cudaSuccess);  // a sticky error is not reset
  return error;
}
}
