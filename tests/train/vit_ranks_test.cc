// A vision transformer on ranks: every way to divide it gives the losses and weights of one rank.
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

#include "base/rng.h"
#include "comm/threads.h"
#include "cpu/make_cpu.h"
#include "tests/train/harness.h"

namespace athanor::vit {
namespace {

constexpr int64_t kImages = 12, kPixels = 3 * 8 * 8, kTokens = 5;  // per step; per image

ModelConfig small_vit() {
  ModelConfig m = model_defaults(ModelType::vit);
  m.vocab_size = 6, m.hidden_size = 24, m.num_hidden_layers = 2, m.num_attention_heads = 6, m.intermediate_size = 36;
  m.image_size = 8, m.patch_size = 4, m.max_position_embeddings = kTokens;
  complete(m);
  validate(m);
  return m;
}

struct Division {
  const char* name;
  MeshSizes mesh = {};
  int zero_stage = 0;
  int stages = 1;
  int64_t micro = kImages;
  int ranks() const { return mesh.ranks(); }
};

EngineOptions options(const Division& d) {
  EngineOptions o;
  o.recipe = make_recipe("fp32", DType::f32);
  o.seq_length = kTokens;
  o.micro_batch_size = d.micro;
  o.global_batch_size = kImages;
  o.zero_stage = d.zero_stage;
  o.pipeline.schedule = PipelineSchedule::one_f_one_b;
  o.seed = o.optimizer.seed = 5;
  o.optimizer.eps = 1e-5;
  o.optimizer.groups = default_groups(o.optimizer.rule);
  o.schedule = {.style = DecayStyle::constant, .lr = 3e-3, .min_lr = 3e-3};
  o.clip_grad = 0.5;
  return o;
}

struct Outcome {
  std::vector<double> losses;
  std::vector<float> masters;
  double evaluation = 0;
};

// Images [first, first + count): pixels, tokens and targets.
struct Images {
  std::vector<uint8_t> pixels;
  std::vector<int32_t> tokens, targets;
  Images(int64_t first, int64_t count) : tokens(size_t(count * kTokens), 0), targets(size_t(count * kTokens), -1) {
    for (int64_t i = 0; i < count; ++i) {
      tokens[size_t(i * kTokens)] = 1;
      targets[size_t(i * kTokens)] = int32_t((first + i) % 6);
      for (int64_t p = 0; p < kPixels; ++p)
        pixels.push_back(uint8_t(random_bits(1, stream_of("pixels"), uint64_t((first + i) * kPixels + p))));
    }
  }
};

Outcome train(const Division& d) {
  Outcome result;
  std::mutex mutex;
  run_ranks(d.ranks(), [&](std::unique_ptr<Communicator> world) {
    const CpuBackend cpu = make_cpu({.threads = 1});
    ProcessMesh mesh(std::move(world), d.mesh);
    Engine engine(small_vit(), options(d), {*cpu.device, *cpu.ops, mesh});
    engine.commit();
    engine.init_weights();
    Outcome mine;
    PhaseClock clock;
    for (int64_t step = 0; step < 3; ++step) {
      for (int64_t m = 0; m < engine.step_micro_batches(); ++m) {
        const int64_t number =
            step * engine.step_micro_batches() * engine.ranks() + engine.micro_batch_order().number(m);
        const Images images(number * d.micro, d.micro);
        engine.set_pixels(images.pixels);
        engine.micro_batch(images.tokens, images.targets, clock);
      }
      const StepState state = engine.finish_step();
      mine.losses.push_back(state.loss / state.loss_targets);
    }
    const Images images(0, d.micro);
    engine.set_pixels(images.pixels);
    const double sum = engine.evaluate(images.tokens, images.targets);
    if (engine.stage().has_head()) mine.evaluation = sum;
    EXPECT_EQ(engine.predicted_classes().size(), engine.stage().has_head() ? size_t(d.micro) : 0u);
    if (d.mesh.stages == 1) mine.masters = testing::all_masters(engine, *cpu.device);  // else a stage has only its own
    const std::lock_guard lock(mutex);
    if (engine.stage().has_head()) result = mine;
  });
  return result;
}

TEST(VitRanks, EveryDivisionIsOneRank) {
  const Outcome want = train({.name = "one rank"});
  for (const Division& d :
       {Division{.name = "micro-batches", .micro = 3}, Division{.name = "replicas", .mesh = {.copies = 2}, .micro = 6},
        Division{.name = "ZeRO-3", .mesh = {.shards = 3}, .zero_stage = 3, .micro = 2},
        Division{.name = "tensor parallelism", .mesh = {.tensor = 3}, .micro = 6},
        Division{.name = "both", .mesh = {.shards = 2, .tensor = 2}, .zero_stage = 2, .micro = 3},
        Division{.name = "pipeline", .mesh = {.stages = 2}, .micro = 3}}) {
    const Outcome got = train(d);
    ASSERT_EQ(got.losses.size(), want.losses.size()) << d.name;
    for (size_t i = 0; i < want.losses.size(); ++i)
      EXPECT_NEAR(got.losses[i], want.losses[i], 1e-5 * want.losses[i]) << d.name << " step " << i;
    if (d.mesh.stages > 1) continue;  // each stage has its own weights
    ASSERT_EQ(got.masters.size(), want.masters.size()) << d.name;
    double difference = 0, size = 0;
    for (size_t i = 0; i < want.masters.size(); ++i) {
      difference += std::pow(double(want.masters[i]) - double(got.masters[i]), 2);
      size += std::pow(double(want.masters[i]), 2);
    }
    EXPECT_LT(std::sqrt(difference / size), 1e-4) << d.name;
  }
}

}  // namespace
}  // namespace athanor::vit
