// The coordinate check of muP [Yang et al. 2022]: after a few steps the size of activations does not depend on the
// model's width, for AdamW, Lion and Muon; without muP it does.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/rng.h"
#include "config/config.h"
#include "perf/activation_sizes.h"
#include "tests/sanitized.h"
#include "tests/train/harness.h"
#include "train/setup.h"

namespace athanor::mup_test {
namespace {

using testing::Rig;

constexpr int64_t kBase = 64, kVocab = 64, kTime = 16, kSequences = 8, kSteps = 5;

std::vector<int32_t> tokens_of(int64_t step) {
  std::vector<int32_t> tokens(size_t(kSequences * kTime));
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = int32_t(random_bits(3, stream_of("tokens"), uint64_t(step) << 32 | i) % uint64_t(kVocab));
  return tokens;
}

std::vector<ActivationSize> sizes_after_steps(const std::string& model, int64_t width, const std::string& keys) {
  const std::string json =
      cat(R"({"model": {"model_type": ")", model, R"(", "vocab_size": )", kVocab, R"(, "hidden_size": )", width,
          R"(, "num_hidden_layers": 2, "num_attention_heads": )", width / 16,
          R"(, "head_dim": 16, "intermediate_size": )", 3 * width, R"(, "max_position_embeddings": )", kTime,
          R"(}, "train_iters": 100, "global_batch_size": )", kSequences, R"(, "micro_batch_size": )", kSequences,
          R"(, "precision": "fp32", "schedule": {"lr_decay_style": "constant"}, )", keys, "}");
  const Config config = parse_config(json, "test", ".");
  Rig rig;
  Engine engine(config.model, engine_options(config, true), rig.backend());
  engine.commit();
  engine.init_weights();
  PhaseClock clock;
  for (int64_t step = 0; step < kSteps; ++step) {
    engine.micro_batch(tokens_of(step), tokens_of(step), clock);
    engine.finish_step();
  }
  return activation_sizes(engine, rig.backend(), tokens_of(0), tokens_of(0));
}

// Maximum ratio of activation sizes over the widths, over all ops.
double largest_ratio(const std::string& model, const std::string& keys) {
  std::vector<std::vector<ActivationSize>> sizes;
  for (const int64_t width : {kBase, 3 * kBase / 2, 2 * kBase, 3 * kBase})
    sizes.push_back(sizes_after_steps(model, width, keys));
  EXPECT_EQ(sizes[0].size(), 2 * 5 + 1U) << "GEMMs and attention of two blocks, and the head's";
  EXPECT_EQ(sizes[0][1].name, "attention 0");
  EXPECT_NE(sizes[0][2].name.find(".0."), std::string::npos) << sizes[0][2].name;
  double worst = 0;
  for (size_t i = 0; i < sizes[0].size(); ++i) worst = std::max(worst, spread(sizes, i));
  return worst;
}

TEST(Mup, ActivationsDoNotDependOnWidth) {
  const std::string base = cat(", \"mup_base_width\": ", kBase);
  for (const char* model : {"gpt2", "llama"}) {
    if (kSanitized && std::string(model) == "gpt2") continue;
    for (const char* keys : {R"("learning_rate": 0.006)", R"("optimizer": "lion", "learning_rate": 0.003)",
                             R"("optimizer": "muon", "muon": {"scale": "spectral"}, "learning_rate": 0.02)"}) {
      if (kSanitized && std::string(keys).find("muon") == std::string::npos) continue;
      EXPECT_LT(largest_ratio(model, keys + base), 1.3) << model << " " << keys;
      EXPECT_GT(largest_ratio(model, keys), 1.3) << model << " " << keys << ": without muP";
    }
  }
}

}  // namespace
}  // namespace athanor::mup_test
