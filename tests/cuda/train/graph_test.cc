// A step on a GPU: CUDA graphs run the same kernels and give the same bits as separate launches, and the host waits
// only in collect().
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <thread>

#include "cuda/check.h"
#include "tests/cuda/train/tiny_model.h"
#include "tests/train/harness.h"

namespace athanor {
namespace {

using testing::kTinyVocab;
using testing::Rig;
using testing::tiny;

constexpr int64_t kSeq = 16, kSteps = 4;

EngineOptions options(const char* precision, bool graphs, Recompute recompute = {}) {
  EngineOptions o;
  o.recipe = make_recipe(precision, DType::f32);
  o.recompute = recompute;
  o.seq_length = kSeq;
  o.micro_batch_size = 1;
  o.global_batch_size = 2;
  o.graphs = graphs;
  o.schedule = {.style = DecayStyle::cosine, .lr = 3e-3, .min_lr = 3e-4, .warmup = 1, .decay = kSteps};
  o.clip_grad = 1;
  if (o.recipe.loss_scaling) {
    o.scaling = {.dynamic = true, .window = 2, .hysteresis = 1, .min_scale = 1};
    o.loss_scale = 1024;
  }
  return o;
}

// Restricts attention to chunks of `length` tokens, if the engine's span table is large enough.
void cut(Engine& engine, int64_t length) {
  std::vector<Span> spans(size_t(engine.options().documents_per_sequence));
  std::vector<int32_t> positions(kSeq);
  for (int64_t t = 0; t < kSeq; ++t) positions[size_t(t)] = int32_t(t % length);
  for (int64_t begin = 0; begin < kSeq; begin += length)
    spans[size_t(begin / length)] = {
        .q_begin = int32_t(begin), .q_len = int32_t(length), .k_begin = int32_t(begin), .k_len = int32_t(length)};
  engine.set_documents(std::move(spans), std::move(positions));
}

void step(Engine& engine, int64_t s) {
  PhaseClock clock;
  if (engine.options().documents_per_sequence > 1) cut(engine, std::min<int64_t>(kSeq, 4 << s));
  for (int64_t m = 0; m < engine.micro_batches(); ++m) {
    const testing::TinyBatch batch(s * 100 + m * 50, kSeq);
    engine.micro_batch(batch.tokens, batch.targets, clock);
  }
  engine.close_step(clock);
}

struct Outcome {
  std::vector<double> losses;
  std::vector<float> norms;
  std::vector<float> scores;  // maximum attention logit of each step, with QK-clip
  std::vector<std::vector<float>> masters;
  bool operator==(const Outcome&) const = default;
};

// Steps are collected one late, as in the trainer. windows: attention window of each step; empty: the model's.
Outcome train(ModelType type, const EngineOptions& o, const std::vector<int64_t>& windows = {}) {
  Rig rig;
  Engine engine(tiny(type), o, rig.backend());
  engine.commit();
  engine.init_weights();
  Outcome out;
  const auto collect = [&] {
    const StepState s = engine.collect().state;
    out.losses.push_back(s.loss);
    out.norms.push_back(s.grad_norm);
    out.scores.push_back(s.max_attention_logit);
  };
  for (int64_t s = 0; s < kSteps; ++s) {
    if (!windows.empty()) engine.set_sliding_window(windows[size_t(s)]);
    step(engine, s);
    while (engine.uncollected() > 1) collect();
  }
  while (engine.uncollected() > 0) collect();
  for (const auto& unit : engine.model().params().units()) out.masters.push_back(rig.read<float>(unit->master));
  return out;
}

class Graphs : public ::testing::TestWithParam<std::pair<ModelType, const char*>> {};

TEST_P(Graphs, AreBitExact) {
  using G = Recompute::Granularity;
  const auto [type, precision] = GetParam();
  for (const Recompute recompute : {Recompute{}, Recompute{G::selective, 1}, Recompute{G::full, 1}}) {
    const Outcome eager = train(type, options(precision, false, recompute));
    EXPECT_EQ(eager, train(type, options(precision, true, recompute))) << int(recompute.granularity);
    EXPECT_LT(eager.losses.back(), 1.1 * 2 * kSeq * std::log(double(kTinyVocab)));  // near that of uniform outputs
  }
}

// Sequence length warm-up: chunks of 4, 8 and 16 tokens are in the span table that the captured kernels read.
TEST_P(Graphs, AreReplayedWithOtherSpanTables) {
  const auto [type, precision] = GetParam();
  EngineOptions graphs = options(precision, true), eager = options(precision, false);
  graphs.documents_per_sequence = eager.documents_per_sequence = 4;
  const Outcome chunks = train(type, eager);
  EXPECT_EQ(chunks, train(type, graphs));
  EXPECT_NE(chunks.losses, train(type, options(precision, true)).losses);
}

TEST_P(Graphs, AreRecapturedForAnotherWindow) {
  const auto [type, precision] = GetParam();
  const std::vector<int64_t> windows = {3, 3, 9, 9};
  const Outcome eager = train(type, options(precision, false), windows);
  EXPECT_EQ(eager, train(type, options(precision, true), windows));
  EXPECT_NE(eager.losses, train(type, options(precision, true), {3, 3, 3, 3}).losses);
}

// Only the device decides which heads are scaled.
TEST_P(Graphs, QkClipIsBitExact) {
  const auto [type, precision] = GetParam();
  EngineOptions eager = options(precision, false), graphs = options(precision, true);
  eager.optimizer.qk_clip_threshold = graphs.optimizer.qk_clip_threshold = 1e9;
  const Outcome free = train(type, eager);
  EXPECT_EQ(free, train(type, graphs));
  EXPECT_GT(free.scores[0], 0);
  eager.optimizer.qk_clip_threshold = graphs.optimizer.qk_clip_threshold = 0.5 * double(free.scores[0]);
  const Outcome clipped = train(type, eager);
  EXPECT_EQ(clipped, train(type, graphs));
  EXPECT_NE(clipped.masters, free.masters);
  EXPECT_LT(clipped.scores.back(), free.scores.back());
}

INSTANTIATE_TEST_SUITE_P(Families, Graphs,
                         ::testing::Values(std::pair{ModelType::gpt2, "bf16"}, std::pair{ModelType::llama, "bf16"},
                                           std::pair{ModelType::gpt2, "fp16"}, std::pair{ModelType::llama, "fp32"}),
                         [](const auto& which) {
                           return std::string(name_of(which.param.first)) + "_" + which.param.second;
                         });

// While a stream is captured in global mode, CUDA refuses on all threads any call that may wait for the GPU or
// allocate.
class NothingMayWait {
 public:
  NothingMayWait() {
    CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    CUDA_CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
  }
  ~NothingMayWait() {
    cudaGraph_t nothing = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(stream_, &nothing), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(nothing), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
  }
  NothingMayWait(const NothingMayWait&) = delete;
  NothingMayWait& operator=(const NothingMayWait&) = delete;

 private:
  cudaStream_t stream_ = nullptr;
};

TEST(Step, HostWaitsOnlyToCollect) {
  for (const bool graphs : {false, true}) {
    Rig rig;
    Engine engine(tiny(ModelType::gpt2), options("bf16", graphs), rig.backend());
    engine.commit();
    engine.init_weights();
    for (int64_t s = 0; s < kSteps; ++s) {
      const int64_t before = rig.device->host_waits();
      {
        std::optional<NothingMayWait> watch;
        if (s >= 2) watch.emplace();  // by then kernels are loaded and graphs captured
        step(engine, s);
      }
      EXPECT_EQ(rig.device->host_waits(), before) << "step " << s << (graphs ? " captured" : " eager");
      engine.collect();
      EXPECT_EQ(rig.device->host_waits(), before + 1);
    }
  }
}

// Like the threads of NCCL and CUPTI, or one that writes a checkpoint.
TEST(Graphs, OtherThreadsMayCallCudaMeanwhile) {
  Rig rig;
  rig.device->begin_capture();
  std::thread([] {
    void* memory = nullptr;
    EXPECT_EQ(cudaMalloc(&memory, 1024), cudaSuccess);
    cudaStream_t own = nullptr;
    EXPECT_EQ(cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(own), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(own), cudaSuccess);
    EXPECT_EQ(cudaFree(memory), cudaSuccess);
  }).join();
  EXPECT_NE(rig.device->end_capture(), nullptr);
}

TEST(Step, PhaseTimesAreMeasuredOnTheDevice) {
  Rig rig;
  Engine engine(tiny(ModelType::gpt2), options("bf16", true), rig.backend());
  engine.commit();
  engine.init_weights();
  for (int64_t s = 0; s < kSteps; ++s) {
    step(engine, s);
    const PhaseTimes times = engine.collect().times;
    for (const Phase phase : {Phase::forward, Phase::backward, Phase::optimizer})
      EXPECT_GT(times[phase], 0) << int(phase);
    EXPECT_EQ(times[Phase::eval], 0);
  }
}

TEST(Step, MoreUncollectedStepsThanSlotsAreRefused) {
  Rig rig;
  Engine engine(tiny(ModelType::gpt2), options("bf16", true), rig.backend());
  engine.commit();
  engine.init_weights();
  for (int64_t s = 0; s < Engine::kStepsAhead; ++s) step(engine, s);
  EXPECT_THROW(step(engine, 2), Error);
}

}  // namespace
}  // namespace athanor
