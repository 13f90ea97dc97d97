// Attention plans that the installed cuDNN builds for GPUs that are only described: neither a GPU nor a driver is
// needed. A plan shows that an engine accepts the graph and how much workspace it needs, not that results are right.
// Prints a table of every shipped configuration on Hopper; with ATHANOR_FULL=1 also on the other GPUs. Skipped if cuDNN
// is missing.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "config/config.h"
#include "cuda/attention/cudnn_attention.h"
#include "cuda/libraries/open.h"
#include "cuda/libraries/specs.h"
#include "tests/temp_dir.h"

namespace athanor {
namespace {
using cuda::AttentionPlan;
using cuda::AttentionProblem;
using cuda::PlanFiles;

// Values from the data sheets and from NVIDIA's table of compute capabilities.
struct Gpu {
  const char* name;
  int capability, multiprocessors, clock_khz, memory_clock_khz, l2_bytes, shared_bytes;
  int64_t memory_bytes;
};
constexpr Gpu kAmpere{"NVIDIA A100-SXM4-80GB", 800, 108, 1410000, 1593000, 41943040, 166912, 85024112640};
constexpr Gpu kHopper{"NVIDIA H200", 900, 132, 1980000, 3201000, 62914560, 232448, 150754820096};
constexpr Gpu kBlackwell{"NVIDIA B200", 1000, 148, 1965000, 3996000, 132644864, 232448, 191503138816};
constexpr Gpu kGpus[] = {kAmpere, kHopper, kBlackwell};

std::string description(const Gpu& gpu) {
  return cat(R"({"maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],"deviceName":")", gpu.name,
             R"(","cudaDeviceId":0,"deviceVer":)", gpu.capability, R"(,"driverVer":13000,"regsPerBlock":65536,)",
             R"("multiProcessorCount":)", gpu.multiprocessors, R"(,"smClockRateKHz":)", gpu.clock_khz,
             R"(,"memClockRateKHz":)", gpu.memory_clock_khz, R"(,"l2CacheSize":)", gpu.l2_bytes,
             R"(,"warpSize":32,"maxSharedMemoryPerBlock":49152,"maxSharedMemoryPerBlockOptin":)", gpu.shared_bytes,
             R"(,"reservedSharedMemoryPerBlock":1024,"maxRegistersPerSM":65536,"pciDeviceId":0,"maxCtasPerSM":32,)",
             R"("maxThreadsPerBlock":1024,"maxThreadsPerSM":2048,"isTccDriver":0,"supportCoopLaunch":1,)",
             R"("totalGlobalMem":)", gpu.memory_bytes, "}");
}

class CudnnPlans : public ::testing::Test {
 protected:
  // The library stays open until the process ends, and so does the driver it found.
  static const CudnnTable* library(std::string* why) {
    static std::string problem;
    static const std::unique_ptr<CudnnTable> table = []() -> std::unique_ptr<CudnnTable> {
      try {
        if (!dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL) && !dlopen(DESCRIBED_DRIVER, RTLD_NOW | RTLD_GLOBAL))
          throw Error(dlerror());
        return std::make_unique<CudnnTable>(open_cudnn(search_places(library_specs())).call);
      } catch (const Error& e) {
        problem = e.what();
        return nullptr;
      }
    }();
    *why = problem;
    return table.get();
  }
  void SetUp() override {
    std::string why;
    cudnn_ = library(&why);
    if (!cudnn_) GTEST_SKIP() << why;
  }
  AttentionPlan plan(const Gpu& gpu, const AttentionProblem& p, const PlanFiles& files = {}) const {
    const std::string json = description(gpu);
    cudnnBackendDescriptor_t d = nullptr;
    const char* what = "cannot describe a GPU";
    cuda::require_cudnn(*cudnn_, cudnn_->cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &d), what);
    cuda::require_cudnn(*cudnn_,
                        cudnn_->cudnnBackendSetAttribute(d, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                                                         static_cast<int64_t>(json.size()) + 1, json.c_str()),
                        what);
    cuda::require_cudnn(*cudnn_, cudnn_->cudnnBackendFinalize(d), what);
    return AttentionPlan(*cudnn_, {.handle = nullptr, .properties = d}, p,
                         files);  // cuDNN keeps using d until the process ends
  }
  // Builds forward and backward plans for packed [q | k | v] rows.
  void plan_both(const Gpu& gpu, const char* name, AttentionProblem p) const {
    p.stride_q = p.stride_k = p.stride_v = (p.heads + 2 * p.kv_heads) * p.head_dim;
    p.stride_dq = p.stride_dk = p.stride_dv = p.stride_q;
    for (const bool backward : {false, true}) {
      p.backward = backward;
      const AttentionPlan made = plan(gpu, p);
      EXPECT_EQ(made.why_not(), "") << gpu.name;
      std::printf("%-22s %-17s %-8s %2ld x %5ld tokens, %2ld/%2ld heads of %3ld: ", gpu.name, name,
                  backward ? "backward" : "forward", long(p.batch), long(p.tokens), long(p.heads), long(p.kv_heads),
                  long(p.head_dim));
      std::printf("engine %ld, scratch %.1f MiB\n", long(made.engine()), double(made.scratch()) / (1 << 20));
    }
  }
  const CudnnTable* cudnn_ = nullptr;
};

TEST_F(CudnnPlans, PlansGpt2OnEveryGpu) {
  for (const Gpu& gpu : kGpus)
    plan_both(gpu, "gpt2-124m",
              {.batch = 16, .tokens = 1024, .heads = 12, .kv_heads = 12, .head_dim = 64, .dtype = DType::bf16});
}

TEST_F(CudnnPlans, PlansGqaOnALongSequence) {
  plan_both(kHopper, "llama-8b",
            {.batch = 1, .tokens = 8192, .heads = 32, .kv_heads = 8, .head_dim = 128, .dtype = DType::bf16});
}

// All masks together on every GPU, and separately on the GPU meant for training; only the bounds of documents add
// scratch memory.
TEST_F(CudnnPlans, PlansDocumentsAndWindows) {
  AttentionProblem p{.batch = 2, .tokens = 4096, .heads = 8, .kv_heads = 2, .head_dim = 128, .dtype = DType::bf16};
  p.window = 512;
  plan_both(kHopper, "a window", p);
  p.documents = true;
  for (const Gpu& gpu : kGpus) plan_both(gpu, "window, documents", p);
  p.window = 0;
  plan_both(kHopper, "documents", p);
  p.backward = true;
  p.stride_q = p.stride_k = p.stride_v = p.stride_dq = p.stride_dk = p.stride_dv = 12 * 128;
  AttentionProblem whole = p;
  whole.documents = false;
  EXPECT_EQ(plan(kHopper, p).scratch(), plan(kHopper, whole).scratch() + 2 * 4096 * sizeof(int32_t));
}

// Restoring a plan skips the heuristic and the compiler.
TEST_F(CudnnPlans, RoundTripThroughFiles) {
  const testing::TempDir folder;
  const PlanFiles files(folder.path(), "a described GPU");
  AttentionProblem p{.batch = 16, .tokens = 1024, .heads = 12, .kv_heads = 12, .head_dim = 64, .dtype = DType::bf16};
  p.stride_q = p.stride_k = p.stride_v = p.stride_dq = p.stride_dk = p.stride_dv = 2304;
  for (const bool backward : {false, true}) {
    p.backward = backward;
    const AttentionPlan made = plan(kHopper, p, files), restored = plan(kHopper, p, files);
    EXPECT_GE(made.engine(), 0);
    EXPECT_EQ(restored.engine(), -1);
    EXPECT_EQ(restored.why_not(), "");
    EXPECT_EQ(restored.scratch(), made.scratch());
    const AttentionPlan elsewhere = plan(kAmpere, p, files);  // the file is refused, and replaced by a new plan
    EXPECT_GE(elsewhere.engine(), 0);
    EXPECT_EQ(elsewhere.why_not(), "");
    EXPECT_EQ(plan(kAmpere, p, files).engine(), -1);
  }
}

TEST_F(CudnnPlans, PlansWideHeadsBackwardOnHopperOnly) {
  AttentionProblem p{.backward = true, .batch = 1, .tokens = 1024, .heads = 4, .kv_heads = 2, .head_dim = 256};
  p.dtype = DType::f16;
  p.stride_q = p.stride_dq = 1024;
  p.stride_k = p.stride_v = p.stride_dk = p.stride_dv = 512;
  EXPECT_EQ(plan(kHopper, p).why_not(), "");
  EXPECT_NE(plan(kAmpere, p).why_not(), "");
}

TEST_F(CudnnPlans, PlansEveryShippedConfiguration) {
  std::set<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator("configs"))
    if (entry.path().extension() == ".json") files.insert(entry.path());
  std::set<AttentionProblem> seen;
  for (const auto& file : files) {
    const Config config = load_config(file);
    const ModelConfig& m = config.model;
    const AttentionProblem p{.batch = std::max<int64_t>(1, 16384 / config.seq_length),
                             .tokens = config.seq_length,
                             .heads = m.num_attention_heads,
                             .kv_heads = m.num_key_value_heads,
                             .head_dim = m.head_dim,
                             .dtype = DType::bf16};
    if (!seen.insert(p).second) continue;
    for (const Gpu& gpu : kGpus)
      if (gpu.capability == kHopper.capability || std::getenv("ATHANOR_FULL")) plan_both(gpu, file.stem().c_str(), p);
  }
  EXPECT_GE(seen.size(), 8U);
}

}  // namespace
}  // namespace athanor
