// Distillation in whole steps: the effect of the teacher, and that results do not depend on the ranks.
#include "train/distillation.h"

#include <gtest/gtest.h>

#include "tests/train/ranks_rig.h"

namespace athanor::ranks {
namespace {

// A KL divergence is a difference of logarithms of about 4, which are rounded to fp32.
void expect_same_teaching(const Curve& want, const Curve& got, const Setting& s) {
  expect_same(want, got, 1e-5, s.name());
  for (size_t i = 0; i < want.distilled.size(); ++i)
    EXPECT_NEAR(got.distilled[i], want.distilled[i], 1e-5 * want.distilled[i] + 2.5e-7) << s.name() << " step " << i;
}

TEST(Distillation, LossDoesNotDependOnRanksAndMicroBatches) {
  Setting one{.type = ModelType::llama, .masked = true, .length = 8, .teacher = true};
  one.precision = "fp32";
  const Curve want = train(one);
  for (const double each : want.distilled) EXPECT_GT(each, 0.001);
  for (int stage = 0; stage <= 3; ++stage) {
    Setting s = one;
    s.stage = stage, s.shards = stage == 0 ? 1 : 2, s.replicas = stage == 0 ? 2 : 1, s.accumulation = 2;
    if (stage == 1) s.recompute = Recompute::Granularity::full;
    expect_same_teaching(want, train(s), s);
  }
  for (const bool sequence : {false, true}) {
    Setting s = one;
    s.tensor = 2, s.sequence = sequence, s.shards = 2, s.stage = 2;
    expect_same_teaching(want, train(s), s);
  }
  Setting context = one;
  context.context = 2;
  expect_same_teaching(want, train(context), context);
  context.ring = true;
  expect_same_teaching(want, train(context), context);
}

// The ring of a model with a window does not pass keys that a teacher with a wider one sees.
TEST(Distillation, TeacherMayHaveAnotherWindowInARing) {
  for (const auto& [window, of_teacher] : {std::pair{3, 0}, {0, 3}, {3, 7}, {7, 3}}) {
    Setting one{.type = ModelType::mistral, .length = 16, .window = window, .teacher = true};
    one.teacher_type = ModelType::mistral, one.teacher_window = of_teacher;
    const Curve want = train(one);
    for (const int context : {2, 4})
      for (const bool ring : {false, true}) {
        Setting s = one;
        s.context = context, s.ring = ring;
        expect_same_teaching(want, train(s), s);
      }
  }
}

TEST(Distillation, CachedFullLogitsMatchTheTeacher) {
  for (const DistillLoss kind : {DistillLoss::kl, DistillLoss::reverse_kl}) {
    Setting s{.type = ModelType::llama, .masked = true, .z_loss = 0.1, .softcap = 3, .teacher = true, .distill = kind};
    const Curve want = train(s);
    s.top_k = kVocab;
    expect_same_teaching(want, train(s), s);
  }
}

// The teacher reads each token's predecessor, which the student does not.
TEST(Distillation, TeacherMayHaveSmearAlone) {
  Setting s{.type = ModelType::llama, .masked = true, .teacher = true, .teacher_type = ModelType::athanor};
  s.top_k = kVocab;
  const Curve want = train(s);
  for (const double each : want.distilled) EXPECT_GT(each, 0.001);
  s.top_k = 0;
  expect_same_teaching(want, train(s), s);
}

TEST(Distillation, TeacherDoesNotReadTheStudentsQuantizedWeights) {
  for (const char* precision : {"fp8_tensorwise", "nvfp4"}) {
    Setting s{.type = ModelType::llama, .precision = precision, .hidden = 32, .intermediate = 32};
    s.teacher = true, s.high_head = false, s.keep_quantized = false;
    const Curve want = train(s);
    s.keep_quantized = true;
    const Curve got = train(s);
    EXPECT_EQ(got.losses, want.losses) << precision;
    EXPECT_EQ(got.distilled, want.distilled) << precision;
  }
}

TEST(Distillation, LossOfCachedLogitsDoesNotDependOnRanks) {
  Setting one{.type = ModelType::llama, .masked = true, .length = 8, .teacher = true, .top_k = 5};
  const Curve want = train(one);
  Setting all = one;
  all.top_k = 0;
  const Curve of_all = train(all, 1);
  EXPECT_LT(want.distilled[0], of_all.distilled[0]) << "a teacher in fewer events is no further away";
  EXPECT_GT(want.distilled[0], 0.1 * of_all.distilled[0]);
  Setting s = one;
  s.shards = 2, s.stage = 2, s.accumulation = 3;
  expect_same_teaching(want, train(s), s);
  s = one;
  for (const bool sequence : {false, true}) {
    s.tensor = 4, s.sequence = sequence;
    expect_same_teaching(want, train(s), s);
  }
  for (const bool ring : {false, true}) {
    s.tensor = 2, s.context = 2, s.ring = ring;
    expect_same_teaching(want, train(s), s);
  }
  const Setting experts{.type = ModelType::dots1, .shards = 2, .teacher = true, .top_k = 5, .experts = 2};
  Setting whole = experts;
  whole.shards = whole.experts = 1;
  expect_same_teaching(train(whole), train(experts), experts);
  s = one;
  s.workers = 2, s.outer = {.steps = 1, .learning_rate = 1, .momentum = 0};
  EXPECT_NEAR(train(s, 1).distilled[0], want.distilled[0], 1e-5 * want.distilled[0]) << "workers add up divergences";
}

TEST(Distillation, SortedProbabilitiesLossDoesNotDependOnRanks) {
  Setting one{.type = ModelType::llama, .masked = true, .length = 8, .teacher = true, .top_k = 5};
  one.distill = DistillLoss::uld;
  const Curve want = train(one);
  for (const double each : want.distilled) EXPECT_GT(each, 0.001);
  Setting s = one;
  s.shards = 2, s.stage = 2, s.accumulation = 3, s.context = 2;
  expect_same_teaching(want, train(s), s);
}

TEST(Distillation, EvaluationsDoNotUseTheTeacher) {
  Setting s{.type = ModelType::gpt2, .lr = 0};
  const double alone = train(s, 1).evaluation;
  s.teacher = true;
  EXPECT_EQ(train(s, 1).evaluation, alone);
}

// The student is its own teacher: the divergence and its gradient are zero, and half of the cross-entropy's gradient is
// left.
TEST(Distillation, EqualTeacherGivesZeroDivergence) {
  Setting s{.type = ModelType::llama, .clip = 0};
  s.precision = "fp32";
  const double want = train(s, 1).norms[0];
  for (const DistillLoss kind : {DistillLoss::kl, DistillLoss::reverse_kl}) {
    EngineOptions o = options(s);
    o.teacher = TeacherOptions{.model = tiny(s), .loss = kind, .temperature = 3, .ce_weight = 0.5};
    on_ranks(s, o, [&](Engine& engine, ProcessMesh&, const CpuBackend& cpu) {
      for (size_t u = 0; u < engine.model().params().units().size(); ++u) {
        const Tensor& from = engine.model().params().units()[u]->weights();
        const Tensor& to = engine.teacher()->params().units()[u]->weights();
        ASSERT_EQ(from.bytes(), to.bytes());
        cpu.device->copy(to.data, from.data, to.bytes(), Stream::compute);
      }
      accumulate(engine, 0);
      const StepState state = engine.finish_step();
      EXPECT_NEAR(state.distill / state.loss_targets, 0, 1e-5);
      EXPECT_NEAR(state.grad_norm, 0.5 * want, 1e-5 * want);
    });
  }
}

TEST(Distillation, TeacherIsNotUpdated) {
  Setting s{.type = ModelType::llama, .lr = 0.01, .teacher = true};
  s.precision = "bf16";
  EngineOptions o = options(s);
  o.teacher->ce_weight = 0;
  on_ranks(s, o, [&](Engine& engine, ProcessMesh&, const CpuBackend& cpu) {
    fill_teacher(engine.teacher()->params(), *cpu.device);
    const auto bytes = [&] {
      std::string all;
      for (const auto& unit : engine.teacher()->params().units())
        all.append(static_cast<const char*>(unit->weights().data), unit->weights().bytes());
      return all;
    };
    const std::string before = bytes();
    double first = 0, last = 0;
    for (int64_t step = 0; step < 30; ++step) {
      accumulate(engine, 0);
      last = engine.finish_step().distill;
      if (step == 0) first = last;
    }
    EXPECT_LT(last, 0.5 * first) << "the student comes closer to its teacher";
    EXPECT_TRUE(bytes() == before);
  });
}

}  // namespace
}  // namespace athanor::ranks
