// A captured graph with everything that captured steps contain: programmatic launches, a memset, a fork to a second
// stream, a join, and a cluster launch. Each replay gives the same bits as separate launches.
#include "cuda/check.h"
#include "cuda/device/cuda_device.h"
#include "cuda/gemm/wgmma_gemm.h"
#include "cuda/kernels.h"
#include "tests/cuda/kernel_test.h"

namespace athanor {
namespace {

constexpr int64_t kChainRows = 256, kTerms = 64, kHalf = 128;

class Chain : public KernelTest {
 protected:
  void SetUp() override {
    KernelTest::SetUp();
    if (IsSkipped()) return;
    for (cudaStream_t* stream : {&main_, &other_}) CUDA_CHECK(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking));
    for (cudaEvent_t* event : {&forked_, &joined_}) CUDA_CHECK(cudaEventCreateWithFlags(event, cudaEventDisableTiming));
    gemm_ = {.d = matrix(kChainRows, 2 * kHalf),
             .a = matrix(kChainRows, kTerms),
             .b = matrix(2 * kHalf, kTerms),
             .aux = matrix(kChainRows, kHalf),
             .epilogue = Epilogue::swiglu,
             .tb = true};
    beside_ = matrix(kChainRows, kTerms), sum_ = matrix(kChainRows, kTerms), cleared_ = matrix(kChainRows, kHalf);
    result_ = matrix(kChainRows, kHalf);
    clusters_ = cuda::wgmma_takes(problem_of(gemm_), make_gemm_runner()->capability());
  }
  void TearDown() override {
    for (void* memory : memory_) (void)cudaFree(memory);
    for (cudaEvent_t event : {forked_, joined_})
      if (event) (void)cudaEventDestroy(event);
    for (cudaStream_t stream : {main_, other_})
      if (stream) (void)cudaStreamDestroy(stream);
  }
  Tensor matrix(int64_t rows, int64_t cols) {
    Tensor t = tensor(DType::bf16, {rows, cols});
    CUDA_CHECK(cudaMalloc(&t.data, t.bytes()));
    memory_.push_back(t.data);
    return t;
  }
  // Each launch reads what the previous one wrote.
  void launch_all() {
    cuda::allow_programmatic_launches(early_starts_in_tests());
    const auto flat = [](const Tensor& t) { return t.view({t.numel()}); };
    cuda::run(RandomNormal{.x = flat(gemm_.a), .stream = 1, .std = 1}, nullptr, main_);
    cuda::run(Fill{.x = flat(gemm_.b), .value = 0.25}, nullptr, main_);
    CUDA_CHECK(cudaMemsetAsync(cleared_.data, 0, cleared_.bytes(), main_));
    CUDA_CHECK(cudaEventRecord(forked_, main_));
    CUDA_CHECK(cudaStreamWaitEvent(other_, forked_, 0));
    cuda::run(RandomNormal{.x = flat(beside_), .stream = 2, .std = 1}, nullptr, other_);
    cuda::run(Add{.y = sum_, .a = gemm_.a, .b = beside_}, nullptr, other_);
    if (clusters_)
      cuda::run_by_wgmma(gemm_, main_);
    else
      cuda::run(Fill{.x = flat(gemm_.aux), .value = 3}, nullptr, main_);
    CUDA_CHECK(cudaEventRecord(joined_, other_));
    CUDA_CHECK(cudaStreamWaitEvent(main_, joined_, 0));
    cuda::run(Add{.y = result_, .a = gemm_.aux, .b = cleared_}, nullptr, main_);
    cuda::run(Add{.y = sum_, .a = sum_, .b = sum_}, nullptr, main_);
  }
  std::vector<std::byte> results() {
    std::vector<std::byte> bytes(result_.bytes() + sum_.bytes());
    CUDA_CHECK(cudaStreamSynchronize(main_));
    CUDA_CHECK(cudaMemcpy(bytes.data(), result_.data, result_.bytes(), cudaMemcpyDeviceToHost));
    CUDA_CHECK(cudaMemcpy(bytes.data() + result_.bytes(), sum_.data, sum_.bytes(), cudaMemcpyDeviceToHost));
    for (const Tensor& t : {result_, sum_}) CUDA_CHECK(cudaMemset(t.data, 0xff, t.bytes()));
    CUDA_CHECK(cudaDeviceSynchronize());
    return bytes;
  }

  cudaStream_t main_ = nullptr, other_ = nullptr;
  cudaEvent_t forked_ = nullptr, joined_ = nullptr;
  std::vector<void*> memory_;
  Gemm gemm_;
  Tensor beside_, sum_, cleared_, result_;
  bool clusters_ = false;
};

TEST_F(Chain, ReplaysMatchSingleLaunchesBitExactly) {
  launch_all();
  const std::vector<std::byte> expected = results();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  CUDA_CHECK(cudaStreamBeginCapture(main_, cudaStreamCaptureModeThreadLocal));
  launch_all();
  CUDA_CHECK(cudaStreamEndCapture(main_, &graph));
  CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
  for (int replay = 0; replay < 3; ++replay) {
    CUDA_CHECK(cudaGraphLaunch(exec, main_));
    EXPECT_EQ(results(), expected) << "replay " << replay;
  }
  CUDA_CHECK(cudaGraphExecDestroy(exec));
  CUDA_CHECK(cudaGraphDestroy(graph));
}

}  // namespace
}  // namespace athanor
