// A libcuda.so.1 for machines without a driver. cuDNN plans for a GPU that is only described, but opens the driver and
// looks up these functions; none of them does anything.
#define NO_DEVICE 100 /* CUDA_ERROR_NO_DEVICE */

int cuInit(unsigned flags) { return (void)flags, NO_DEVICE; }
int cuDriverGetVersion(int* version) { return *version = 13000, 0; }
int cuDeviceGetCount(int* count) { return *count = 0, 0; }

static int number(int* out, int value) { return *out = value, 0; }
int cuFuncGetAttribute(int* out) { return number(out, 128); }
int cuKernelGetAttribute(int* out) { return number(out, 128); }
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* out) { return number(out, 1); }

static int handle(void** out) { return *out = (void*)0x1000, 0; }
int cuLibraryLoadData(void** out) { return handle(out); }
int cuLibraryGetKernel(void** out) { return handle(out); }
int cuKernelGetFunction(void** out) { return handle(out); }
int cuModuleLoadData(void** out) { return handle(out); }
int cuModuleLoadDataEx(void** out) { return handle(out); }
int cuModuleGetFunction(void** out) { return handle(out); }

static int words(const char** out) { return *out = "no driver", 0; }
int cuGetErrorName(int error, const char** out) { return (void)error, words(out); }
int cuGetErrorString(int error, const char** out) { return (void)error, words(out); }

#define NOTHING(name) \
  int name(void) { return 0; }
NOTHING(cuCtxGetCurrent)
NOTHING(cuCtxGetDevice)
NOTHING(cuCtxGetLimit)
NOTHING(cuCtxPopCurrent)
NOTHING(cuCtxPushCurrent)
NOTHING(cuDeviceGet)
NOTHING(cuDeviceGetAttribute)
NOTHING(cuDevicePrimaryCtxRelease)
NOTHING(cuDevicePrimaryCtxReset)
NOTHING(cuDevicePrimaryCtxRetain)
NOTHING(cuFuncSetAttribute)
NOTHING(cuKernelSetAttribute)
NOTHING(cuLaunchCooperativeKernel)
NOTHING(cuLaunchKernel)
NOTHING(cuLaunchKernelEx)
NOTHING(cuLibraryLoadFromFile)
NOTHING(cuLibraryUnload)
NOTHING(cuLinkAddData)
NOTHING(cuLinkAddData_v2)
NOTHING(cuLinkAddFile_v2)
NOTHING(cuLinkComplete)
NOTHING(cuLinkCreate)
NOTHING(cuLinkCreate_v2)
NOTHING(cuLinkDestroy)
NOTHING(cuMemcpyDtoH_v2)
NOTHING(cuModuleGetGlobal_v2)
NOTHING(cuModuleLoadFatBinary)
NOTHING(cuModuleUnload)
NOTHING(cuOccupancyMaxPotentialClusterSize)
NOTHING(cuStreamGetCtx)
NOTHING(cuStreamSynchronize)
NOTHING(cuTensorMapEncodeTiled)
