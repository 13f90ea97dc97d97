// Sampling with a key/value cache equals the whole forward pass; drawing obeys temperature, top-k and top-p.
#include <gtest/gtest.h>

#include <cmath>

#include "config/config.h"
#include "tests/train/harness.h"
#include "train/sampler.h"
#include "train/snapshot.h"

namespace athanor {
namespace {

class CachedLogits : public ::testing::TestWithParam<const char*> {};

TEST_P(CachedLogits, EqualTheFullForwardPass) {
  testing::Rig rig;
  const std::string folder = cat("tests/golden/", GetParam());
  const ModelConfig config = load_model_config(folder + "/config.json");
  const SafetensorsFile reference(folder + "/reference.safetensors");
  const int64_t t = reference.at("tokens").shape[2], vocab = config.vocab_size, split = 5;
  std::vector<int32_t> tokens(size_t(reference.at("tokens").bytes / 4));
  reference.read(reference.at("tokens"), std::as_writable_bytes(std::span(tokens)));
  std::vector<float> want(size_t(reference.at("logits").bytes / 4));
  reference.read(reference.at("logits"), std::as_writable_bytes(std::span(want)));
  Sampler sampler(config, make_recipe("fp32", DType::f32), rig.backend(), split, t);
  sampler.commit();
  load_weights(sampler.model().params(), *rig.device, folder);
  for (int round = 0; round < 2; ++round) {  // a second prompt forgets the first
    std::vector<float> got = sampler.prompt(std::span(tokens).first(size_t(split)));
    for (int64_t at = split;; ++at) {
      for (int64_t v = 0; v < vocab; ++v)
        ASSERT_NEAR(got[size_t(v)], want[size_t((at - 1) * vocab + v)], 2e-5) << "after " << at;
      if (at == t) break;
      got = sampler.next(tokens[size_t(at)]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, CachedLogits,
                         ::testing::Values("gpt2", "llama", "llama3", "qwen2", "qwen3", "mistral"),
                         [](const auto& test) { return std::string(test.param); });

TEST(ChooseToken, ZeroTemperatureTakesTheLikeliest) {
  EXPECT_EQ(choose_token(std::vector<float>{0.1f, 3.0f, 2.9f}, {.temperature = 0}, 5), 1);
}

TEST(ChooseToken, FrequenciesFollowTheSoftmax) {
  const std::vector<float> logits = {0.0f, 1.0f, -1.0f, 2.0f};
  double sum = 0, count[4] = {};
  for (const float z : logits) sum += std::exp(double(z));
  constexpr int kDraws = 20000;
  for (uint64_t d = 0; d < kDraws; ++d) ++count[choose_token(logits, {.seed = 3}, d)];
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(count[i] / kDraws, std::exp(double(logits[i])) / sum, 0.01) << i;
}

TEST(ChooseToken, TopKAndTopPKeepTheLikeliest) {
  const std::vector<float> logits = {0.0f, 1.0f, -1.0f, 2.0f};  // probabilities .087 .236 .032 .644
  bool seen[2][4] = {};
  for (uint64_t d = 0; d < 2000; ++d) {
    seen[0][choose_token(logits, {.top_k = 2, .seed = 1}, d)] = true;
    seen[1][choose_token(logits, {.top_p = 0.9, .seed = 1}, d)] = true;
  }
  EXPECT_TRUE(seen[0][3] && seen[0][1]);
  EXPECT_FALSE(seen[0][0] || seen[0][2]);
  EXPECT_TRUE(seen[1][3] && seen[1][1] && seen[1][0]);
  EXPECT_FALSE(seen[1][2]);
}

TEST(ChooseToken, SameSeedSameText) {
  const std::vector<float> logits(50, 0.0f);
  for (uint64_t d = 0; d < 20; ++d)
    EXPECT_EQ(choose_token(logits, {.seed = 9}, d), choose_token(logits, {.seed = 9}, d));
}

}  // namespace
}  // namespace athanor
