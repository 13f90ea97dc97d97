// Laws of 4-bit and 8-bit gradient and weight traffic between ranks.
#include <gtest/gtest.h>

#include <cstring>

#include "checkpoint/layout.h"
#include "tests/temp_dir.h"
#include "tests/train/ranks_rig.h"

namespace athanor::ranks {
namespace {

Setting packed(int replicas, int shards, int stage, PackedTraffic traffic) {
  return {.type = ModelType::gpt2,
          .tied = true,
          .precision = "bf16",
          .replicas = replicas,
          .shards = shards,
          .stage = stage,
          .accumulation = 2,
          .packed = traffic};
}

// train() also expects that all ranks have the same weights.
TEST(PackedTraffic, StepsStayNearFullPrecisionTraffic) {
  for (const auto& [replicas, shards, stage] : {std::tuple{1, 2, 1}, {1, 3, 2}, {2, 2, 1}, {2, 2, 2}, {2, 1, 1}}) {
    const Setting s = packed(replicas, shards, stage, {.gradients = true, .weights = true});
    Setting whole = s;
    whole.packed = {};
    const Curve want = train(whole, 6), got = train(s, 6);
    for (size_t i = 0; i < 6; ++i) {
      EXPECT_NEAR(got.losses[i], want.losses[i], 2e-3) << s.name();
      EXPECT_NEAR(got.norms[i], want.norms[i], 0.05 * want.norms[i]) << s.name();
      EXPECT_NE(got.norms[i], want.norms[i]) << s.name() << ": nothing was rounded";
    }
  }
}

std::vector<float> bf16_values(const std::vector<std::byte>& bytes) {
  std::vector<float> values;
  for (size_t i = 0; i < bytes.size(); i += sizeof(bf16)) {
    bf16 x;
    std::memcpy(&x, bytes.data() + i, sizeof x);
    values.push_back(to_float(x));
  }
  return values;
}

// Root mean square of what all ranks compute with minus the masters, in one tensor of a checkpoint.
double distance(const std::map<std::string, std::vector<std::byte>>& files, const std::string& weight) {
  const std::vector<std::byte>& bytes = files.at(cat("model ", weight));
  const std::vector<float> sent = bf16_values(files.at(cat("optimizer sent_weight.", weight)));
  std::vector<float> masters(bytes.size() / sizeof(float));
  std::memcpy(masters.data(), bytes.data(), bytes.size());
  EXPECT_EQ(sent.size(), masters.size()) << weight;
  double sum = 0;
  for (size_t i = 0; i < sent.size(); ++i) sum += std::pow(double(sent[i]) - double(masters[i]), 2);
  return std::sqrt(sum / double(sent.size()));
}

TEST(PackedTraffic, SentWeightsFollowTheMasterWeights) {
  const testing::TempDir dir;
  const Setting s = packed(1, 2, 1, {.weights = true});
  constexpr const char* kWeight = "transformer.h.1.mlp.c_fc.weight";
  std::map<int64_t, double> apart;
  for (const int64_t steps : {2, 40}) {
    const std::string save = dir / cat(steps);
    run_part(s, "", 0, steps, save);
    apart[steps] = distance(tensors_of(cat(save, "/", step_folder(steps))), kWeight);
  }
  EXPECT_GT(apart[2], 0);
  EXPECT_LT(apart[2], s.lr) << "below one step of AdamW";
  EXPECT_LT(apart[40], 1.5 * apart[2]) << "what is rounded away is sent later";
}

TEST(PackedTraffic, ResumesBitExactly) {
  expect_exact_resume(packed(2, 2, 2, {.gradients = true, .weights = true}), {3}, 5);
}

// LAMB's norms include the rows of the padded vocabulary, which are not saved: they stay 0.
TEST(PackedTraffic, PaddingOfAVocabularyStaysZero) {
  for (const int stage : {1, 2}) {
    Setting s = packed(1, 2, stage, {.gradients = true});
    s.rule = RuleName::lamb, s.vocab = 41, s.hidden = 20;  // 41 * 20 elements: no multiple of a rotated group
    expect_exact_resume(s, {3}, 5);
  }
}

// dots1 has the biases of its routers as buffers, for which no weights are sent.
TEST(PackedTraffic, ModelsWithBuffersAreSavedAndResumeBitExactly) {
  for (const int shards : {1, 2}) {
    Setting s = packed(1, shards, 1, {.gradients = true, .weights = true});
    s.type = ModelType::dots1, s.tied = false;
    expect_exact_resume(s, {3}, 5);
  }
}

// On one rank nothing is sent, and the state is there for later.
TEST(PackedTraffic, ResumesOnOtherRanks) {
  const testing::TempDir dir;
  const Setting s = packed(1, 2, 1, {.weights = true}), one = packed(1, 1, 1, {.weights = true});
  run_part(s, "", 0, 3, dir / "first");
  const std::string folder = cat(dir / "first", "/", step_folder(3));
  const double want = run_part(s, folder, 3, 4, dir / "same").back();
  EXPECT_NEAR(run_part(one, folder, 3, 4, dir / "one").back(), want, 1e-5 * want) << "computed with the sent weights";
  const std::string alone = cat(dir / "one", "/", step_folder(4));
  EXPECT_NEAR(run_part(s, alone, 4, 5, dir / "again").back(), run_part(one, alone, 4, 5, dir / "alone").back(),
              1e-5 * want);
}

TEST(PackedTraffic, NonFiniteGradientsSkipTheStep) {
  on_ranks(packed(1, 2, 1, {.gradients = true}), [](Engine& engine, ProcessMesh&, const CpuBackend& cpu) {
    const std::vector<float> before = testing::all_masters(engine, *cpu.device);
    accumulate(engine, 0);
    if (engine.rank() == 1) engine.poison_step();
    EXPECT_EQ(engine.finish_step().skip, 1);
    EXPECT_EQ(testing::all_masters(engine, *cpu.device), before);
  });
}

}  // namespace
}  // namespace athanor::ranks
