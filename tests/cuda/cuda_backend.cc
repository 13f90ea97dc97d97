#include "tests/cuda/cuda_backend.h"

#include <cuda_runtime_api.h>

#include <cstdlib>
#include <map>

#include "cuda/check.h"
#include "cuda/cuda_ops.h"
#include "cuda/device/cuda_device.h"
#include "cuda/libraries/open.h"
#include "cuda/libraries/specs.h"
#ifdef ATHANOR_EMULATED_GPU
#include "emulator/emulator.h"
#endif

namespace athanor {
namespace {

#ifdef ATHANOR_EMULATED_GPU
void next_schedule(int threads) {
  static uint64_t seed = 0;
  emu::seed(++seed);
  emu::set_threads(threads);
}
void throw_report() {
  const emu::Report report = emu::take_report();
  if (report.fault != emu::Fault::kNone) throw Error(report.text);
}
#else
void next_schedule(int) {}
void throw_report() {}
#endif

class CudaTestDevice final : public Device {
 public:
  std::string description() const override { return "CUDA device of a test"; }
  void* allocate(size_t bytes, Mem) override {
    void* memory = nullptr;
    CUDA_CHECK(cudaMalloc(&memory, bytes + kAlignment));
    CUDA_CHECK(cudaMemset(memory, 0, bytes + kAlignment));
    auto* aligned = reinterpret_cast<void*>(round_up<uintptr_t>(reinterpret_cast<uintptr_t>(memory), kAlignment));
    blocks_[aligned] = memory;
    allocated_ += bytes;
    return aligned;
  }
  void release(void* memory, size_t bytes, Mem) override {
    (void)cudaFree(blocks_[memory]);  // an Error may already be propagating
    blocks_.erase(memory);
    allocated_ -= bytes;
  }
  void copy(void* to, const void* from, size_t bytes, Stream) override {
    if (bytes == 0) return;
    const cudaError_t error = cudaMemcpy(to, from, bytes, cudaMemcpyDefault);
    throw_report();
    CUDA_CHECK(error);
  }
  std::unique_ptr<Event> record(Stream) override { return std::make_unique<Event>(); }
  void wait(Stream, const Event&) override {}
  void sync() override {
    const cudaError_t error = cudaDeviceSynchronize();
    throw_report();
    CUDA_CHECK(error);
  }
  size_t capacity(Mem) const override { return size_t{1} << 30; }
  size_t allocated() const override { return allocated_; }

 private:
  static constexpr size_t kAlignment = 4096;  // the Device interface promises more alignment than cudaMalloc
  std::map<void*, void*> blocks_;             // key: aligned address; value: allocated address
  size_t allocated_ = 0;
};

// The program's ops; on the emulated GPU every launch uses a new schedule.
class CudaTestOps final : public Decorated<CudaTestOps> {
 public:
  CudaTestOps(int threads, cuda::AttentionRunner attention, bool search = false)
      : ops_(nullptr, make_gemm_runner(), std::move(attention)), threads_(threads), search_(search) {}
  const cuda::CudaOps& inner() const { return ops_; }

  template <class Op>
  void on(const Op& op, void* scratch) {
    op.check();
    next_schedule(threads_);
    cuda::allow_programmatic_launches(early_starts_in_tests());  // for the GPU that is simulated now
    try {
      if constexpr (std::is_same_v<Op, Gemm>)
        if (search_ && op.epilogue != Epilogue::none) ops_.search({.gemms = {&op, 1}}, 600);
      ops_.run(op, scratch);
    } catch (const Error&) {
      throw_report();  // reports the fault, which explains more than the failed launch after it
      throw;
    }
  }

 private:
  cuda::CudaOps ops_;
  int threads_;
  bool search_;
};
}  // namespace

TestBackend make_cuda_backend(int threads) {
  return {std::make_shared<CudaTestDevice>(), std::make_shared<CudaTestOps>(threads, cuda::AttentionRunner())};
}

TestBackend make_searching_backend(int threads) {
  return {std::make_shared<CudaTestDevice>(), std::make_shared<CudaTestOps>(threads, cuda::AttentionRunner(), true)};
}

TestBackend make_attention_backend(int threads, std::unique_ptr<cuda::CudnnAttention> attention) {
  return {std::make_shared<CudaTestDevice>(),
          std::make_shared<CudaTestOps>(threads, cuda::AttentionRunner(std::move(attention), false))};
}

std::unique_ptr<cuda::GemmRunner> make_gemm_runner() {
  static const CublasLtTable table = open_cublaslt(search_places(library_specs())).call;
  return std::make_unique<cuda::GemmRunner>(table, cuda::GemmRunner::Options{.workspace_bytes = 32 << 10});
}

bool early_starts_in_tests() {
  const char* value = std::getenv("ATHANOR_TEST_EARLY_STARTS");
  return !value || std::string_view(value) != "0";
}

std::string why_no_gpu() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) return "";
  return std::string("no GPU: ") + cudaGetErrorString(error);
}
}  // namespace athanor
