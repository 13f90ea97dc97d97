// Names and texts of the error codes that the emulated runtime returns and tests plan; the texts are those of the real
// runtime.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <iterator>

namespace {
struct Code {
  cudaError_t code;
  const char* name;
  const char* text;
};
#define EMU_CODE(code, text) \
  { code, #code, text }
constexpr Code kCodes[] = {
    EMU_CODE(cudaSuccess, "no error"),
    EMU_CODE(cudaErrorInvalidValue, "invalid argument"),
    EMU_CODE(cudaErrorMemoryAllocation, "out of memory"),
    EMU_CODE(cudaErrorInvalidConfiguration, "invalid configuration argument"),
    EMU_CODE(cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy"),
    EMU_CODE(cudaErrorInsufficientDriver, "CUDA driver version is insufficient for CUDA runtime version"),
    EMU_CODE(cudaErrorInvalidDeviceFunction, "invalid device function"),
    EMU_CODE(cudaErrorNoDevice, "no CUDA-capable device is detected"),
    EMU_CODE(cudaErrorInvalidDevice, "invalid device ordinal"),
    EMU_CODE(cudaErrorECCUncorrectable, "uncorrectable ECC error encountered"),
    EMU_CODE(cudaErrorPeerAccessUnsupported, "peer access is not supported between these two devices"),
    EMU_CODE(cudaErrorNvlinkUncorrectable, "uncorrectable NVLink error detected during the execution"),
    EMU_CODE(cudaErrorContained, "Invalid access of peer GPU memory over nvlink or a hardware error"),
    EMU_CODE(cudaErrorInvalidResourceHandle, "invalid resource handle"),
    EMU_CODE(cudaErrorIllegalState, "the operation cannot be performed in the present state"),
    EMU_CODE(cudaErrorNotReady, "device not ready"),
    EMU_CODE(cudaErrorIllegalAddress, "an illegal memory access was encountered"),
    EMU_CODE(cudaErrorLaunchOutOfResources, "too many resources requested for launch"),
    EMU_CODE(cudaErrorLaunchTimeout, "the launch timed out and was terminated"),
    EMU_CODE(cudaErrorPeerAccessAlreadyEnabled, "peer access is already enabled"),
    EMU_CODE(cudaErrorPeerAccessNotEnabled, "peer access has not been enabled"),
    EMU_CODE(cudaErrorAssert, "device-side assert triggered"),
    EMU_CODE(cudaErrorHostMemoryAlreadyRegistered, "part or all of the requested memory range is already mapped"),
    EMU_CODE(cudaErrorHostMemoryNotRegistered, "pointer does not correspond to a registered memory region"),
    EMU_CODE(cudaErrorHardwareStackError, "hardware stack error"),
    EMU_CODE(cudaErrorIllegalInstruction, "an illegal instruction was encountered"),
    EMU_CODE(cudaErrorMisalignedAddress, "misaligned address"),
    EMU_CODE(cudaErrorInvalidAddressSpace, "operation not supported on global/shared address space"),
    EMU_CODE(cudaErrorInvalidPc, "invalid program counter"),
    EMU_CODE(cudaErrorLaunchFailure, "unspecified launch failure"),
    EMU_CODE(cudaErrorCooperativeLaunchTooLarge, "too many blocks in cooperative launch"),
    EMU_CODE(cudaErrorTensorMemoryLeak, "tensor memory not completely freed"),
    EMU_CODE(cudaErrorNotPermitted, "operation not permitted"),
    EMU_CODE(cudaErrorNotSupported, "operation not supported"),
    EMU_CODE(cudaErrorMpsClientTerminated, "the MPS client has been terminated by the server"),
    EMU_CODE(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing"),
    EMU_CODE(cudaErrorStreamCaptureInvalidated, "operation failed due to a previous error during capture"),
    EMU_CODE(cudaErrorStreamCaptureMerge, "operation would result in a merge of separate capture sequences"),
    EMU_CODE(cudaErrorStreamCaptureUnmatched, "capture was not ended in the same stream as it began"),
    EMU_CODE(cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work"),
    EMU_CODE(cudaErrorStreamCaptureIsolation, "dependency created on uncaptured work in another stream"),
    EMU_CODE(cudaErrorStreamCaptureImplicit,
             "operation would make the legacy stream depend on a capturing blocking stream"),
    EMU_CODE(cudaErrorCapturedEvent, "operation not permitted on an event last recorded in a capturing stream"),
    EMU_CODE(cudaErrorStreamCaptureWrongThread,
             "attempt to terminate a thread-local capture sequence from another thread"),
    EMU_CODE(cudaErrorExternalDevice, "an async error has occured in external entity outside of CUDA"),
    EMU_CODE(cudaErrorInvalidClusterSize, "a kernel launch error has occurred due to cluster misconfiguration"),
    EMU_CODE(cudaErrorUnknown, "unknown error"),
};
#undef EMU_CODE

const Code* find(cudaError_t code) {
  const Code* found = std::find_if(std::begin(kCodes), std::end(kCodes), [=](const Code& c) { return c.code == code; });
  return found == std::end(kCodes) ? nullptr : found;
}
}  // namespace

extern "C" {
const char* cudaGetErrorName(cudaError_t error) {
  const Code* code = find(error);
  return code != nullptr ? code->name : "unrecognized error code";
}
const char* cudaGetErrorString(cudaError_t error) {
  const Code* code = find(error);
  return code != nullptr ? code->text : "unrecognized error code";
}
}
