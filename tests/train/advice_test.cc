// Advice on dimensions: silent for round models, and its gain is what the rounder model has more.
#include "train/advice.h"

#include <gtest/gtest.h>

namespace athanor {
namespace {

ModelConfig gpt2(int64_t hidden, int64_t heads, int64_t ffn) {
  ModelConfig m = model_defaults(ModelType::gpt2);
  m.vocab_size = 256;
  m.hidden_size = hidden;
  m.num_hidden_layers = 2;
  m.num_attention_heads = heads;
  m.intermediate_size = ffn;
  m.max_position_embeddings = 32;
  complete(m);
  return m;
}

TEST(Advice, RoundModelsGetNone) {
  EXPECT_TRUE(dimension_advice(gpt2(128, 4, 512), 16).empty());
  EXPECT_EQ(dimension_advice(gpt2(128, 4, 512), 64).size(), 1u) << "head_dim 32 leaves half a tile of 64 empty";
}

TEST(Advice, OddFeedForwardNamesTheNextMultipleAndItsGain) {
  const auto advice = dimension_advice(gpt2(128, 4, 500), 16);
  ASSERT_EQ(advice.size(), 1u);
  EXPECT_EQ(advice[0].key, "intermediate_size");
  EXPECT_EQ(advice[0].better, 512);
  // Twelve more rows in two matrices of two layers, and their biases.
  const double more = 2 * (2 * 12 * 128 + 12), all = 2 * (4 * 128 * 128 + 2 * 500 * 128) + 256 * 128;
  EXPECT_NEAR(advice[0].gain, more / all, 0.02 * more / all);
  EXPECT_NE(to_text(advice[0], 16).find("model.intermediate_size 500 is not a multiple of 16: 512 costs the same"),
            std::string::npos);
}

TEST(Advice, OddHeadsWidenTheModel) {
  const auto advice = dimension_advice(gpt2(120, 4, 512), 16);
  ASSERT_EQ(advice.size(), 1u);
  EXPECT_EQ(advice[0].key, "head_dim");
  EXPECT_EQ(advice[0].better, 32);
  EXPECT_GT(advice[0].gain, 0.06);
}

TEST(Advice, HeadsThatDoNotMakeTheWidthAreSeparate) {
  ModelConfig m = model_defaults(ModelType::qwen3);
  m.vocab_size = 256;
  m.hidden_size = 100;
  m.num_hidden_layers = 1;
  m.num_attention_heads = 4;
  m.head_dim = 64;
  m.intermediate_size = 256;
  m.max_position_embeddings = 32;
  complete(m);
  const auto advice = dimension_advice(m, 16);
  ASSERT_EQ(advice.size(), 1u);
  EXPECT_EQ(advice[0].key, "hidden_size");
  EXPECT_EQ(advice[0].better, 112);
}

}  // namespace
}  // namespace athanor
