// Simulated GPUs: what they say of themselves, limits of launches, driver calls.
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
    EXPECT_LE(prop.totalGlobalMem, gigabytes[d] * (size_t{1} << 30));
    EXPECT_GE(prop.totalGlobalMem, gigabytes[d] * size_t{1000 * 1000 * 980});
    int each = 0, in_a_block = 0;
    EMU_OK(cudaDeviceGetAttribute(&each, cudaDevAttrMaxSharedMemoryPerMultiprocessor, d));
    EMU_OK(cudaDeviceGetAttribute(&in_a_block, cudaDevAttrMaxSharedMemoryPerBlockOptin, d));
    EXPECT_EQ(each - in_a_block, 1024);  // the system's part
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
  expect_refused(launch_store(stream, static_cast<int*>(second), 1), cudaErrorInvalidResourceHandle,
                 "stream is of device 0");
  expect_refused(cudaEventRecord(event, nullptr), cudaErrorInvalidResourceHandle, "event is of device 0");
  EMU_OK(cudaMemcpyAsync(second, first, 64, cudaMemcpyDeviceToDevice, nullptr));
  EMU_OK(cudaFree(second));
  EMU_OK(cudaFree(first));
  EMU_OK(cudaStreamDestroy(stream));
  EMU_OK(cudaEventDestroy(event));
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
  const KernelCall call{const_cast<void*>(store_kernel()), nullptr, nullptr, 0};
  expect_refused(launch_raw(call, {.grid = dim3(1), .block = dim3(32), .shared_bytes = 49153}), cudaErrorInvalidValue,
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
  EMU_OK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 99000, cudaEnableDefault, &status));
  EXPECT_EQ(status, cudaDriverEntryPointVersionNotSufficent);
}
}  // namespace
}  // namespace emu::testing
