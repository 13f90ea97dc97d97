// Training whose attention was chosen by trial: the choice decides about bits, and brought back it repeats them.
#ifdef ATHANOR_EMULATED_GPU
#include <gtest/gtest.h>

#include "cuda/make_cuda.h"
#include "emulator/emulator.h"
#include "emulator/libraries/cudnn/fake_cudnn.h"
#include "tests/cuda/train/tiny_model.h"
#include "tests/train/harness.h"

namespace athanor {
namespace {
using testing::tiny;

constexpr int64_t kSeq = 16, kSteps = 2;

// The losses of a run; `choices`: of an earlier run, or, if empty, those of a search in which cuDNN takes so long.
std::vector<double> train(CudaAttention attention, double cudnn_microseconds, std::string& choices) {
  CudaBackend cuda = make_cuda({.attention = attention, .tokens = kSeq});
  emu::fakes::Installed<emu::fakes::FakeCudnn>::get().set_microseconds(cudnn_microseconds);
  ProcessMesh mesh(make_single(*cuda.device), {1, 1, 1, 1, 1, 1});
  EngineOptions o;
  o.recipe = make_recipe("bf16", DType::f32);
  o.seq_length = kSeq;
  o.micro_batch_size = o.global_batch_size = 1;
  o.schedule = {.style = DecayStyle::constant, .lr = 3e-3, .min_lr = 3e-3};
  Engine engine(tiny(ModelType::gpt2), o, {*cuda.device, *cuda.ops, mesh});
  engine.memory();
  if (choices.empty()) {
    Tunable ops = engine.tunable();
    ops.products = {};
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

TEST(AttentionByTrial, BitsFollowFromTheChoiceAndComeBackWithIt) {
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

}  // namespace
}  // namespace athanor
#endif
