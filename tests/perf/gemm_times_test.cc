// The GEMMs of a step: each different one once, with all its launches, and timed without weights or data.
#include "perf/gemm_times.h"

#include <gtest/gtest.h>

#include <map>

#include "ops/gemm_problem.h"
#include "perf/described_gpu.h"
#include "tests/tiny_model.h"
#include "tests/train/harness.h"

namespace athanor {
namespace {

EngineOptions options(Recompute::Granularity granularity = Recompute::Granularity::none) {
  EngineOptions o{.recipe = make_recipe("bf16", DType::f32), .recompute = {granularity, 1}};
  o.seq_length = 16;
  o.micro_batch_size = 2;
  o.global_batch_size = 6;
  return o;
}

ModelConfig gpt2() {
  return testing::tiny_model(ModelType::gpt2,
                             {.vocab = 200, .hidden = 32, .heads = 2, .intermediate = 128, .positions = 16});
}

TEST(GemmTimes, CountAllLaunchesOfAStep) {
  testing::Rig rig(1);
  Engine engine(gpt2(), options(), rig.backend());
  int64_t launches = 0;
  double last = 0;
  std::map<std::string, int> seen;
  for (const GemmUse& use : gemms_of_step(engine)) {
    launches += use.launches;
    EXPECT_GT(use.launches + use.within, 0);
    EXPECT_EQ(use.launches % engine.micro_batches(), 0);
    EXPECT_EQ(++seen[cat(problem_of(use.op))], 1);
    EXPECT_FALSE(use.recompute);
    const double work = double(use.launches + use.within) * use.op.cost().flops;
    EXPECT_TRUE(last == 0 || work <= last) << "most work first";
    last = work;
  }
  int64_t planned = 0;
  for (const Launch& launch : engine.micro_launches()) planned += launch.op == std::string(Gemm::kName);
  EXPECT_EQ(engine.micro_batches(), 3);
  EXPECT_EQ(launches, 3 * planned);
  EXPECT_GT(seen.size(), 8U);
}

// A recomputed GELU belongs to its GEMM.
TEST(GemmTimes, IncludeRecomputation) {
  testing::Rig rig(1);
  Engine engine(gpt2(), options(Recompute::Granularity::selective), rig.backend());
  int again = 0;
  for (const GemmUse& use : gemms_of_step(engine)) {
    again += use.recompute;
    EXPECT_TRUE(!use.recompute || use.op.epilogue == Epilogue::gelu);
  }
  EXPECT_EQ(again, 1);
}

// Calls examine(engine) with the plan of a two-layer Llama on a described GPU.
template <class F>
auto planned(const char* gpu_name, const EngineOptions& o, F examine, int64_t head_dim = 16) {
  DescribedBackend gpu = describe(find_gpu(gpu_name));
  ProcessMesh mesh(make_single(*gpu.device), {});
  ModelConfig model = testing::tiny_model(
      ModelType::llama, {.vocab = 200, .hidden = 32, .heads = 2, .intermediate = 96, .positions = 16});
  model.head_dim = head_dim;
  Engine engine(model, o, {*gpu.device, *gpu.ops, mesh, gpu.tuning});
  engine.memory();
  return examine(engine);
}

// On GPUs with the program's own SwiGLU kernels, SwiGLU and its gradient need no separate pass, so plans count none.
TEST(GemmTimes, SwigluIsFusedWhereTheGpuHasItsKernel) {
  const auto launches = [](const char* gpu, const char* op) {
    return planned(gpu, options(Recompute::Granularity::selective), [&](Engine& engine) {
      return std::ranges::count_if(engine.micro_launches(), [&](const Launch& l) { return l.op == std::string(op); });
    });
  };
  for (const char* gpu : {"a100", "b200"}) EXPECT_EQ(launches(gpu, SwigluFwd::kName), 4) << gpu;
  EXPECT_EQ(launches("a100", SwigluBwd::kName), 2);
  for (const char* op : {SwigluFwd::kName, SwigluBwd::kName}) EXPECT_EQ(launches("h200", op), 0) << op;
  EXPECT_EQ(launches("h200", Gemm::kName), launches("a100", Gemm::kName));
}

// Forward RoPE needs no separate pass either if its kernel supports the head size; backward, and with other head sizes,
// it does.
TEST(GemmTimes, RopeIsFusedWhereTheGpuHasItsKernel) {
  const auto launches = [](const char* gpu, int64_t head_dim) {
    return planned(
        gpu, options(),
        [&](Engine& engine) {
          return std::ranges::count_if(engine.micro_launches(),
                                       [](const Launch& l) { return l.op == std::string(Rope::kName); });
        },
        head_dim);
  };
  EXPECT_EQ(launches("a100", 64), 4);
  EXPECT_EQ(launches("h200", 16), 4);
  EXPECT_EQ(launches("h200", 64), 2);
}

// On these GPUs backward recomputes silu(gate) * up with the gradient, so forward stores it in no layer.
TEST(GemmTimes, FusedSwigluGradientSavesNoForwardOutput) {
  const auto bytes = [](const char* gpu) {
    return planned(gpu, options(), [](Engine& engine) { return engine.memory().total(MemoryKind::activations); });
  };
  constexpr size_t kTokens = 32, kIntermediate = 96, kLayers = 2;
  EXPECT_EQ(bytes("a100") - bytes("h200"), kLayers * kTokens * kIntermediate * sizeof(uint16_t));
}

// GEMMs of quantized values are listed once for each shape and pair of scales, in addition to GEMMs in the compute
// dtype.
TEST(GemmTimes, ScaledGemmsAreListedAndTimed) {
  testing::Rig rig(1);
  for (const char* precision : {"fp8_blockwise", "nvfp4"}) {
    EngineOptions o = options();
    o.recipe = make_recipe(precision, DType::f32);
    Engine engine(gpt2(), o, rig.backend());
    int64_t launches = 0, matrices = 0;
    double last = 0;
    std::map<std::string, int> seen;
    for (const GemmUse& use : gemms_of_step(engine)) {
      EXPECT_EQ(++seen[words_of(use)], 1);
      EXPECT_TRUE(last == 0 || use.flops() <= last) << "most work first";
      last = use.flops();
      matrices += !use.quantized;
      if (!use.quantized) continue;
      launches += use.launches;
      EXPECT_LT(use.cost().bytes, use.op.cost().bytes + 4096) << "of codes, and their scales";
      EXPECT_GT(time_gemm(rig.backend(), use).seconds, 0) << words_of(use);
    }
    int64_t planned = 0;
    for (const Launch& launch : engine.micro_launches()) planned += launch.op == std::string(ScaledGemm::kName);
    EXPECT_GT(planned, 8);
    EXPECT_EQ(launches, 3 * planned);
    EXPECT_GT(matrices, 0) << "of the head";
  }
}

TEST(GemmTimes, EveryGemmOfAStepIsTimed) {
  testing::Rig rig(1);
  Engine engine(gpt2(), options(), rig.backend());
  const size_t before = rig.device->allocated();
  for (const GemmUse& use : gemms_of_step(engine)) {
    const GemmTime time = time_gemm(rig.backend(), use);
    EXPECT_GT(time.seconds, 0) << problem_of(use.op);
    EXPECT_FALSE(time.method.words.empty());
  }
  EXPECT_EQ(rig.device->allocated(), before);
}

}  // namespace
}  // namespace athanor
