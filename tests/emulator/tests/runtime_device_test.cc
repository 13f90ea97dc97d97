// Simulated GPUs: what they say of themselves, access between them, limits of launches, occupancy, driver calls.
#include <cuda.h>

#include <cstring>

#include "emulator/tests/runtime_support.h"

namespace emu::testing {
namespace {
using RuntimeDevice = RuntimeTest;

TEST_F(RuntimeDevice, ModelsDescribeThemselves) {
  const std::vector<GpuModel> models{gpu_a100(), gpu_rtx4090(), gpu_h100(), gpu_h200(), gpu_b200()};
  simulate(models);
  int count = 0;
  EMU_OK(cudaGetDeviceCount(&count));
  ASSERT_EQ(count, 5);
  const int capabilities[] = {80, 89, 90, 90, 100}, processors[] = {108, 128, 132, 132, 148};
  const size_t gigabytes[] = {80, 24, 80, 141, 180};  // as they are sold
  for (int d = 0; d < count; ++d) {
    cudaDeviceProp prop;
    EMU_OK(cudaGetDeviceProperties(&prop, d));
    EXPECT_EQ(prop.name, models[size_t(d)].name);
    EXPECT_EQ(prop.major * 10 + prop.minor, capabilities[d]);
    EXPECT_EQ(prop.multiProcessorCount, processors[d]);
    EXPECT_EQ(prop.clusterLaunch, capabilities[d] >= 90);
    EXPECT_LE(prop.totalGlobalMem, gigabytes[d] * (size_t{1} << 30));
    EXPECT_GE(prop.totalGlobalMem, gigabytes[d] * size_t{1000 * 1000 * 980});
    int value = 0;
    EMU_OK(cudaDeviceGetAttribute(&value, cudaDevAttrMaxSharedMemoryPerBlockOptin, d));
    EXPECT_EQ(size_t(value), prop.sharedMemPerBlockOptin);
    EMU_OK(cudaDeviceGetAttribute(&value, cudaDevAttrL2CacheSize, d));
    EXPECT_EQ(value, prop.l2CacheSize);
    EXPECT_EQ(prop.sharedMemPerMultiprocessor - prop.sharedMemPerBlockOptin, prop.reservedSharedMemPerBlock);
  }
  int value = 0;
  expect_refused(cudaDeviceGetAttribute(&value, cudaDeviceAttr(9999), 0), cudaErrorNotSupported, "9999");
  expect_refused(cudaSetDevice(5), cudaErrorInvalidDevice, "device 5 of 5");
  expect_refused(cudaSetDevice(-1), cudaErrorInvalidDevice, "device -1");
}

TEST_F(RuntimeDevice, NoDeviceAtAll) {
  simulate({});
  int count = -1;
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaErrorNoDevice);
  EXPECT_EQ(count, 0);
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, 4), cudaErrorNoDevice);
  (void)cudaGetLastError();
  simulate({gpu_h200()});
}

TEST_F(RuntimeDevice, EachDeviceHasItsMemoryAndStreams) {
  simulate({gpu_h200(), gpu_h200()});
  set_memory_limit(1 << 20, 0);
  set_memory_limit(1 << 20, 1);
  void *first = nullptr, *second = nullptr;
  EMU_OK(cudaMalloc(&first, 900 << 10));
  cudaStream_t stream = new_stream();
  cudaEvent_t event = new_event();
  EMU_OK(cudaSetDevice(1));
  EMU_OK(cudaMalloc(&second, 900 << 10));
  cudaPointerAttributes attributes;
  EMU_OK(cudaPointerGetAttributes(&attributes, second));
  EXPECT_EQ(attributes.device, 1);
  expect_refused(launch_store(stream, static_cast<int*>(second), 1), cudaErrorInvalidResourceHandle,
                 "stream is of device 0");
  expect_refused(cudaEventRecord(event, nullptr), cudaErrorInvalidResourceHandle, "event is of device 0");
  EMU_OK(cudaMemcpyPeerAsync(second, 1, first, 0, 64, nullptr));  // needs no peer access
  expect_refused(cudaMemcpyPeerAsync(second, 0, first, 0, 64, nullptr), cudaErrorInvalidValue,
                 "not memory of device 0");
  EMU_OK(cudaFree(second));
  EMU_OK(cudaFree(first));
  EMU_OK(cudaStreamDestroy(stream));
  EMU_OK(cudaEventDestroy(event));
}

TEST_F(RuntimeDevice, PeersMustBeEnabled) {
  simulate({gpu_h200(), gpu_h200()});
  int can = 0;
  EMU_OK(cudaDeviceCanAccessPeer(&can, 0, 1));
  EXPECT_EQ(can, 1);
  int* memory = device_ints({0});
  EMU_OK(cudaDeviceSynchronize());
  EMU_OK(cudaSetDevice(1));
  EMU_OK(cudaDeviceEnablePeerAccess(0, 0));
  expect_refused(cudaDeviceEnablePeerAccess(0, 0), cudaErrorPeerAccessAlreadyEnabled, "enabled already");
  EMU_OK(launch_store(nullptr, memory, 7));
  EMU_OK(cudaDeviceSynchronize());
  EXPECT_EQ(read_ints(memory, 1)[0], 7);
  EMU_OK(cudaDeviceDisablePeerAccess(0));
  expect_refused(cudaDeviceDisablePeerAccess(0), cudaErrorPeerAccessNotEnabled, "never enabled");
  if (kChecking) {
    EMU_OK(launch_store(nullptr, memory, 8));
    EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
    EXPECT_NE(take_report().text.find("without peer access"), std::string::npos);
  }
  EMU_OK(cudaFree(memory));
  simulate({gpu_rtx4090(), gpu_rtx4090()});
  EMU_OK(cudaDeviceCanAccessPeer(&can, 0, 1));
  EXPECT_EQ(can, 0);
  expect_refused(cudaDeviceEnablePeerAccess(1, 0), cudaErrorPeerAccessUnsupported, "RTX 4090");
}

TEST_F(RuntimeDevice, ImpossibleLaunchesFailAtOnce) {
  int* memory = device_ints({0});
  const auto shaped = [&](dim3 grid, dim3 block, size_t shared = 0, unsigned cluster = 1) {
    LaunchShape shape;
    shape.grid = grid, shape.block = block, shape.shared_bytes = shared, shape.cluster = cluster;
    return launch_shaped(shape, memory, 1);
  };
  expect_refused(shaped(dim3(1), dim3(1025)), cudaErrorInvalidConfiguration, "1 to 1024 threads");
  expect_refused(shaped(dim3(1), dim3(1, 1, 65)), cudaErrorInvalidConfiguration, "64 in z");
  expect_refused(shaped(dim3(0), dim3(32)), cudaErrorInvalidConfiguration, "a grid has");
  expect_refused(shaped(dim3(1, 65536), dim3(32)), cudaErrorInvalidConfiguration, "65535");
  EMU_OK(shaped(dim3(1), dim3(32)));  // from here on the runtime knows the kernel
  int value = 1;
  void* arguments[] = {&memory, &value};
  expect_refused(cudaLaunchKernel(store_kernel(), dim3(1), dim3(32), arguments, 49153, nullptr), cudaErrorInvalidValue,
                 "MaxDynamicSharedMemorySize");
  expect_refused(shaped(dim3(16), dim3(32), 0, 16), cudaErrorInvalidClusterSize, "at most 8");
  expect_refused(shaped(dim3(3), dim3(32), 0, 2), cudaErrorInvalidConfiguration, "no multiple");
  EMU_OK(shaped(dim3(1), dim3(32), 100000));  // launch() asks
  expect_refused(cudaFuncSetAttribute(store_kernel(), cudaFuncAttributeMaxDynamicSharedMemorySize, 232449),
                 cudaErrorInvalidValue, "232448");
  expect_refused(launch_many_bytes(), cudaErrorNotSupported, "32764");
  EMU_OK(cudaDeviceSynchronize());
  EMU_OK(cudaFree(memory));
}

TEST_F(RuntimeDevice, OlderGpusLackClustersAndDependentLaunches) {
  simulate({gpu_a100()});
  int* memory = device_ints({0, 0});
  LaunchShape shape;
  shape.grid = dim3(2), shape.block = dim3(32), shape.cluster = 2;
  expect_refused(launch_shaped(shape, memory, 1), cudaErrorNotSupported, "A100-SXM4-80GB has no clusters");
  shape.cluster = 1, shape.programmatic = true;
  expect_refused(launch_shaped(shape, memory, 1), cudaErrorNotSupported, "programmatic");
  EMU_OK(cudaFree(memory));
}

TEST_F(RuntimeDevice, CooperativeGridsMustFit) {
  GpuModel small = gpu_h200();
  small.multiprocessors = 2;
  simulate({small});
  std::vector<int> zeros(64);
  int* memory = device_ints(zeros);
  LaunchShape shape;
  shape.grid = dim3(4), shape.block = dim3(1024), shape.cooperative = true;
  EMU_OK(launch_shaped(shape, memory, 1));
  shape.grid = dim3(5);
  expect_refused(launch_shaped(shape, memory, 1), cudaErrorCooperativeLaunchTooLarge, "room for 4");
  EMU_OK(cudaDeviceSynchronize());
  EMU_OK(cudaFree(memory));
}

TEST_F(RuntimeDevice, OccupancyKeepsEveryLimit) {
  const auto blocks = [](int threads, size_t shared) {
    int count = -1;
    EXPECT_EQ(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&count, store_kernel(), threads, shared), cudaSuccess);
    return count;
  };
  EXPECT_EQ(blocks(1024, 0), 2);        // threads: 2048
  EXPECT_EQ(blocks(32, 0), 32);         // blocks
  EXPECT_EQ(blocks(33, 0), 32);         // two warps each
  EXPECT_EQ(blocks(128, 45 << 10), 4);  // shared memory: 228 / (45 + 1)
  EXPECT_EQ(blocks(128, 60 << 10), 0);  // more than the kernel may have
  EMU_OK(cudaFuncSetAttribute(store_kernel(), cudaFuncAttributeMaxDynamicSharedMemorySize, 227 << 10));
  EXPECT_EQ(blocks(128, 60 << 10), 3);
  EXPECT_EQ(blocks(128, 227 << 10), 1);
  declare_kernel_resources(store_kernel(), 128, 0);
  EXPECT_EQ(blocks(128, 0), 4);  // registers: 65536 / (128 * 128)
  cudaFuncAttributes attributes;
  EMU_OK(cudaFuncGetAttributes(&attributes, store_kernel()));
  EXPECT_EQ(attributes.numRegs, 128);
  EXPECT_EQ(attributes.maxThreadsPerBlock, 512);
  EXPECT_EQ(attributes.maxDynamicSharedSizeBytes, 227 << 10);
  size_t shared = 0;
  EMU_OK(cudaOccupancyAvailableDynamicSMemPerBlock(&shared, store_kernel(), 2, 128));
  EXPECT_EQ(shared, size_t{113} << 10);
}

TEST_F(RuntimeDevice, TypedLaunchesOfTheRealHeaderWork) {
  int* memory = device_ints({0});
  EMU_OK(launch_store(nullptr, memory, 1));  // makes the kernel known
  int value = 9;
  void* arguments[] = {&memory, &value};
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributePriority;
  attributes[1].val.priority = -1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(1);
  config.blockDim = dim3(32);
  config.attrs = attributes;
  config.numAttrs = 2;
  EMU_OK(cudaDeviceSynchronize());
  EMU_OK(cudaLaunchKernelExC(&config, store_kernel(), arguments));
  EXPECT_EQ(read_ints(memory, 1)[0], 9);
  const auto unknown = [](const void* kernel, void** a) {
    return cudaLaunchKernel(kernel, dim3(1), dim3(1), a, 0, nullptr);
  };
  expect_refused(unknown(reinterpret_cast<const void*>(&launch_many_bytes), arguments), cudaErrorInvalidDeviceFunction,
                 "register_kernel");
  attributes[1].id = cudaLaunchAttributeProgrammaticEvent;
  expect_refused(cudaLaunchKernelExC(&config, store_kernel(), arguments), cudaErrorNotSupported, "launch attribute");
  EMU_OK(cudaFree(memory));
}

using Encode = decltype(&cuTensorMapEncodeTiled);
struct Tiled {  // a right call, from which each case changes one thing
  CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  cuuint32_t rank = 2;
  char* base = nullptr;
  cuuint64_t dims[2] = {64, 8}, strides[1] = {128};
  cuuint32_t box[2] = {64, 8}, steps[2] = {1, 1};
  CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
  CUresult encode(Encode call) {
    CUtensorMap map;
    return call(&map, type, rank, base, dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  }
};

TEST_F(RuntimeDevice, DriverCallsComeThroughEntryPoints) {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult status;
  EMU_OK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &status));
  ASSERT_EQ(status, cudaDriverEntryPointSuccess);
  int* memory = device_ints(std::vector<int>(256));
  const auto encode = [&](const std::function<void(Tiled&)>& change) {
    Tiled tiled;
    tiled.base = reinterpret_cast<char*>(memory);
    change(tiled);
    return tiled.encode(reinterpret_cast<Encode>(entry));
  };
  EXPECT_EQ(encode([](Tiled&) {}), CUDA_SUCCESS);
  EXPECT_EQ(encode([](Tiled& t) { t.base += 8; }), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(encode([](Tiled& t) { t.rank = 6; }), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(encode([](Tiled& t) { t.strides[0] = 120; }), CUDA_ERROR_INVALID_VALUE);
  EXPECT_NE(explanation().find("multiples of 16"), std::string::npos);
  EXPECT_EQ(encode([](Tiled& t) { t.box[1] = 257; }), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(encode([](Tiled& t) { t.box[0] = 4; }), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(encode([](Tiled& t) { t.swizzle = CU_TENSOR_MAP_SWIZZLE_64B; }), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(encode([](Tiled& t) { t.swizzle = CU_TENSOR_MAP_SWIZZLE_64B, t.box[0] = 32; }), CUDA_SUCCESS);
  char host[64];
  EXPECT_EQ(encode([&](Tiled& t) { t.base = host - reinterpret_cast<uintptr_t>(host) % 16 + 16; }),
            CUDA_ERROR_INVALID_VALUE);
  EMU_OK(cudaFree(memory));
  EMU_OK(cudaGetDriverEntryPointByVersion("cuNoSuchThing", &entry, 12000, cudaEnableDefault, &status));
  EXPECT_EQ(status, cudaDriverEntryPointSymbolNotFound);
  EXPECT_EQ(entry, nullptr);
  EMU_OK(cudaGetDriverEntryPointByVersion("cuInit", &entry, 99000, cudaEnableDefault, &status));
  EXPECT_EQ(status, cudaDriverEntryPointVersionNotSufficent);
}
}  // namespace
}  // namespace emu::testing
