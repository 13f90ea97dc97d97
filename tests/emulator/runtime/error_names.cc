// Texts of the error codes that the emulated runtime returns and tests plan: those of the real runtime.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <iterator>

namespace {
struct Code {
  cudaError_t code;
  const char* text;
};
constexpr Code kCodes[] = {
    {cudaSuccess, "no error"},
    {cudaErrorInvalidValue, "invalid argument"},
    {cudaErrorMemoryAllocation, "out of memory"},
    {cudaErrorInvalidConfiguration, "invalid configuration argument"},
    {cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy"},
    {cudaErrorInsufficientDriver, "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorInvalidDeviceFunction, "invalid device function"},
    {cudaErrorNoDevice, "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "invalid device ordinal"},
    {cudaErrorECCUncorrectable, "uncorrectable ECC error encountered"},
    {cudaErrorNvlinkUncorrectable, "uncorrectable NVLink error detected during the execution"},
    {cudaErrorContained, "Invalid access of peer GPU memory over nvlink or a hardware error"},
    {cudaErrorInvalidResourceHandle, "invalid resource handle"},
    {cudaErrorIllegalState, "the operation cannot be performed in the present state"},
    {cudaErrorNotReady, "device not ready"},
    {cudaErrorIllegalAddress, "an illegal memory access was encountered"},
    {cudaErrorLaunchOutOfResources, "too many resources requested for launch"},
    {cudaErrorLaunchTimeout, "the launch timed out and was terminated"},
    {cudaErrorAssert, "device-side assert triggered"},
    {cudaErrorHardwareStackError, "hardware stack error"},
    {cudaErrorIllegalInstruction, "an illegal instruction was encountered"},
    {cudaErrorMisalignedAddress, "misaligned address"},
    {cudaErrorInvalidAddressSpace, "operation not supported on global/shared address space"},
    {cudaErrorInvalidPc, "invalid program counter"},
    {cudaErrorLaunchFailure, "unspecified launch failure"},
    {cudaErrorTensorMemoryLeak, "tensor memory not completely freed"},
    {cudaErrorNotPermitted, "operation not permitted"},
    {cudaErrorNotSupported, "operation not supported"},
    {cudaErrorMpsClientTerminated, "the MPS client has been terminated by the server"},
    {cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureMerge, "operation would result in a merge of separate capture sequences"},
    {cudaErrorStreamCaptureUnmatched, "capture was not ended in the same stream as it began"},
    {cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work"},
    {cudaErrorStreamCaptureIsolation, "dependency created on uncaptured work in another stream"},
    {cudaErrorStreamCaptureImplicit, "operation would make the legacy stream depend on a capturing blocking stream"},
    {cudaErrorCapturedEvent, "operation not permitted on an event last recorded in a capturing stream"},
    {cudaErrorStreamCaptureWrongThread, "attempt to terminate a thread-local capture sequence from another thread"},
    {cudaErrorExternalDevice, "an async error has occured in external entity outside of CUDA"},
    {cudaErrorInvalidClusterSize, "a kernel launch error has occurred due to cluster misconfiguration"},
    {cudaErrorUnknown, "unknown error"},
};

const Code* find(cudaError_t code) {
  const Code* found = std::find_if(std::begin(kCodes), std::end(kCodes), [=](const Code& c) { return c.code == code; });
  return found == std::end(kCodes) ? nullptr : found;
}
}  // namespace

extern "C" {
const char* cudaGetErrorString(cudaError_t error) {
  const Code* code = find(error);
  return code != nullptr ? code->text : "unrecognized error code";
}
}
