// Training with autotuned attention: the choice affects the bits, and a restored choice repeats them. Also documents,
// with cuDNN's kernels and with the program's own.
#ifdef ATHANOR_EMULATED_GPU
#include <gtest/gtest.h>

#include <cmath>

#include "cuda/make_cuda.h"
#include "emulator/emulator.h"
#include "emulator/libraries/cudnn/fake_cudnn.h"
#include "tests/cuda/train/tiny_model.h"
#include "tests/train/harness.h"

namespace athanor {
namespace {
using testing::tiny;

constexpr int64_t kSeq = 16, kSteps = 2;

// The losses of a run. `choices`: those of an earlier run, or if empty, filled in by autotuning in which cuDNN takes
// the given time.
std::vector<double> train(CudaAttention attention, double cudnn_microseconds, std::string& choices,
                          std::vector<Span> documents = {}) {
  CudaBackend cuda = make_cuda({.attention = attention, .tokens = kSeq, .documents = true});
  emu::fakes::Installed<emu::fakes::FakeCudnn>::get().set_microseconds(cudnn_microseconds);
  ProcessMesh mesh(make_single(*cuda.device), {});
  EngineOptions o;
  o.recipe = make_recipe("bf16", DType::f32);
  o.seq_length = kSeq;
  o.documents = std::move(documents);
  o.micro_batch_size = o.global_batch_size = 1;
  o.schedule = {.style = DecayStyle::constant, .lr = 3e-3, .min_lr = 3e-3};
  Engine engine(tiny(ModelType::gpt2), o, {*cuda.device, *cuda.ops, mesh});
  engine.memory();
  if (choices.empty()) {
    Tunable ops = engine.tunable();
    ops.gemms = {};
    cuda.tuning->search(ops, 600);
    choices = cuda.tuning->export_choices();
  } else {
    EXPECT_EQ(cuda.tuning->import_choices(choices), "");
  }
  engine.commit();
  engine.init_weights();
  std::vector<double> losses;
  for (int64_t s = 0; s < kSteps; ++s) {
    const testing::TinyBatch batch(s * 100, kSeq);
    PhaseClock clock;
    engine.micro_batch(batch.tokens, batch.targets, clock);
    const StepState state = engine.finish_step();
    losses.push_back(state.loss);
    losses.push_back(double(state.grad_norm));
  }
  return losses;
}

TEST(AttentionByAutotuning, BitsDependOnTheChoiceAndAreReproducedByIt) {
  constexpr double kFast = 0.1, kSlow = 1e5;
  constexpr auto kAuto = CudaAttention::automatic;
  std::string cudnn, own, named, builtin;
  const std::vector<double> by_cudnn = train(kAuto, kFast, cudnn), by_own = train(kAuto, kSlow, own);
  EXPECT_NE(by_cudnn, by_own);
  EXPECT_EQ(by_cudnn, train(CudaAttention::cudnn, kSlow, named));
  EXPECT_EQ(by_own, train(CudaAttention::builtin, kFast, builtin));
  EXPECT_EQ(by_own, train(kAuto, kFast, own));  // resumed
  EXPECT_EQ(by_cudnn, train(kAuto, kSlow, cudnn));
  emu::fakes::Installed<emu::fakes::FakeCudnn>::get().set_microseconds(5);
}

TEST(AttentionByAutotuning, CudnnDocumentLossesFollowTheBuiltinKernels) {
  const std::vector<Span> documents = {{0, 5, 0, 5, 0, 0}, {}, {5, 11, 5, 11, 0, 0}};
  const auto losses = [](CudaAttention attention, const std::vector<Span>& spans) {
    std::string choices;
    return train(attention, 5, choices, spans);
  };
  const std::vector<double> cudnn = losses(CudaAttention::cudnn, documents);  // first: opens the fake library
  const std::vector<double> own = losses(CudaAttention::builtin, documents);
  const std::vector<double> whole = losses(CudaAttention::cudnn, {});
  EXPECT_NE(own, cudnn);
  for (size_t i = 0; i < own.size(); ++i) {
    EXPECT_NEAR(cudnn[i], own[i], 1e-3 * own[i]);
    EXPECT_LT(4 * std::abs(cudnn[i] - own[i]), std::abs(whole[i] - own[i]))
        << i << ": own " << own[i] << ", cuDNN " << cudnn[i] << ", whole sequences " << whole[i];
  }
}

}  // namespace
}  // namespace athanor
#endif
