// The fake libraries on the emulated GPU: device memory, stream order, planned failures, captured graphs, and ranks on
// several simulated devices. What the libraries compute is tested in tests/emulator/tests/libraries.
#include <cuda_bf16.h>
#include <gtest/gtest.h>

#include <cstring>
#include <thread>
#include <vector>

#include "emulator/emulator.h"
#include "emulator/libraries/cublaslt/fake_cublaslt.h"
#include "emulator/libraries/nccl/fake_nccl.h"
#include "emulator/runtime/control.h"

namespace emu::fakes {
namespace {

constexpr size_t kSize = 32;  // square matrices

class FakeLibraries : public testing::Test {
 protected:
  void SetUp() override {
    simulate({gpu_h200(), gpu_h200()});
    take_report();
  }
  void TearDown() override {
    Report report = take_report();
    EXPECT_EQ(report.fault, Fault::kNone) << report.text;
    simulate({gpu_h200()});
  }
  static float* device_floats(size_t count, float value) {
    float* memory = nullptr;
    EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&memory), count * sizeof(float)), cudaSuccess);
    std::vector<float> host(count, value);
    EXPECT_EQ(cudaMemcpy(memory, host.data(), count * sizeof(float), cudaMemcpyHostToDevice), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);  // the copy is staged; other streams are not ordered after it
    return memory;
  }
  static float first(const float* memory) {
    float value = -1;
    EXPECT_EQ(cudaMemcpy(&value, memory, sizeof value, cudaMemcpyDeviceToHost), cudaSuccess);
    return value;
  }
};

// D = A B with all elements equal, on a stream.
struct Multiplication {
  explicit Multiplication(const athanor::CublasLtTable& table) : lt(table) {
    lt.cublasLtCreate(&handle);
    lt.cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    lt.cublasLtMatrixLayoutCreate(&layout, CUDA_R_32F, kSize, kSize, kSize);
  }
  ~Multiplication() {
    lt.cublasLtMatrixLayoutDestroy(layout);
    lt.cublasLtMatmulDescDestroy(desc);
    lt.cublasLtDestroy(handle);
  }
  cublasStatus_t run(const float* a, const float* b, float* d, cudaStream_t stream) const {
    float one = 1, zero = 0;
    return lt.cublasLtMatmul(handle, desc, &one, a, layout, b, layout, &zero, d, layout, d, layout, nullptr, nullptr, 0,
                             stream);
  }
  athanor::CublasLtTable lt;
  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t layout = nullptr;
};

TEST_F(FakeLibraries, AProductInDeviceMemoryAndInACapturedGraph) {
  FakeCublasLt fake(emulated_machine());
  {
    Multiplication product(fake.table());
    float *a = device_floats(kSize * kSize, 2), *b = device_floats(kSize * kSize, 3),
          *d = device_floats(kSize * kSize, 0);
    cudaStream_t stream;
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(product.run(a, b, d, stream), CUBLAS_STATUS_SUCCESS) << fake.last_refusal();
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(first(d), 2 * 3 * float(kSize));

    cudaGraph_t graph;
    cudaGraphExec_t exec;
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
    ASSERT_EQ(product.run(d, b, a, stream), CUBLAS_STATUS_SUCCESS) << fake.last_refusal();
    ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    EXPECT_EQ(first(a), 2.f);  // captured, not run
    ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    ASSERT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(first(a), 2 * 3 * 3 * float(kSize * kSize));
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    cudaStreamDestroy(stream);
    for (float* memory : {a, b, d}) cudaFree(memory);
  }
  EXPECT_TRUE(fake.leaks().empty());
}

TEST_F(FakeLibraries, InputsThatEndTooEarlyAndPlannedFailuresAreNoticed) {
  FakeCublasLt fake(emulated_machine());
  Multiplication product(fake.table());
  fail_next("cublasLtMatmul", 1, int{CUBLAS_STATUS_EXECUTION_FAILED});
  float* b = device_floats(kSize * kSize, 3);
  float* d = device_floats(kSize * kSize, 0);
  EXPECT_EQ(product.run(b, b, d, nullptr), CUBLAS_STATUS_EXECUTION_FAILED);
  float* a = device_floats(kSize * kSize / 2, 1);
  EXPECT_EQ(product.run(a, b, d, nullptr), CUBLAS_STATUS_SUCCESS);
  EXPECT_NE(cudaDeviceSynchronize(), cudaSuccess);
  Report report = take_report();
  EXPECT_EQ(report.fault, Fault::kBounds) << report.text;
  EXPECT_NE(report.text.find("cublasLtMatmul"), std::string::npos) << report.text;
}

TEST_F(FakeLibraries, RanksOnTwoDevicesReduceTogether) {
  FakeNccl fake(emulated_machine());
  athanor::NcclTable nccl = fake.table();
  ncclUniqueId id;
  ASSERT_EQ(nccl.ncclGetUniqueId(&id), ncclSuccess);
  auto rank = [&](int r) {
    ASSERT_EQ(cudaSetDevice(r), cudaSuccess);
    ncclComm_t comm;
    ASSERT_EQ(nccl.ncclCommInitRankConfig(&comm, 2, id, r, nullptr), ncclSuccess) << fake.last_refusal();
    cudaStream_t stream;
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    float* x = device_floats(8, float(r + 1));
    for (int step = 0; step < 5; ++step) {
      EXPECT_EQ(nccl.ncclAllReduce(x, x, 8, ncclFloat32, ncclSum, comm, stream), ncclSuccess) << fake.last_refusal();
    }
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(first(x), 3 * 16.f);
    EXPECT_EQ(nccl.ncclCommDestroy(comm), ncclSuccess);
    cudaStreamDestroy(stream);
    cudaFree(x);
  };
  std::thread other(rank, 1);
  rank(0);
  other.join();
  EXPECT_TRUE(fake.leaks().empty());
}

}  // namespace
}  // namespace emu::fakes
