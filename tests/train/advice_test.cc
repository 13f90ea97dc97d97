// Advice on dimensions: none for well-aligned models, and the promised gain is the fraction of operations spent on
// padding.
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

TEST(Advice, IsEmptyForAlignedShapes) {
  EXPECT_TRUE(dimension_advice(gpt2(128, 4, 512), 32, 16).empty());
  EXPECT_EQ(dimension_advice(gpt2(128, 4, 512), 32, 64).size(), 1u) << "head_dim 32 leaves half a tile of 64 empty";
}

TEST(Advice, UnalignedFeedForwardNamesTheNextMultipleAndItsCost) {
  const auto advice = dimension_advice(gpt2(128, 4, 500), 32, 16);
  ASSERT_EQ(advice.size(), 1u);
  EXPECT_EQ(advice[0].key, "intermediate_size");
  EXPECT_EQ(advice[0].better, 512);
  // Forward operations per token: 2 per weight, and 4 H D per key of attention, 16 of 32 keys on average.
  const double padding = 2 * 2 * 2 * 12 * 128;
  const double useful = 2 * (2 * (4 * 128 * 128 + 2 * 500 * 128) + 256 * 128) + 2 * 4 * 128 * 16;
  EXPECT_NEAR(advice[0].gain, padding / (useful + padding), 1e-9);
  EXPECT_NE(to_text(advice[0], 16).find("model.intermediate_size 500 is not a multiple of 16: its GEMMs cost what 512"),
            std::string::npos);
}

TEST(Advice, UnalignedHeadsCostOnlyInAttention) {
  const auto short_text = dimension_advice(gpt2(96, 4, 512), 32, 16),
             long_text = dimension_advice(gpt2(96, 4, 512), 4096, 16);
  ASSERT_EQ(short_text.size(), 1u);
  EXPECT_EQ(short_text[0].key, "head_dim");
  EXPECT_EQ(short_text[0].better, 32);
  EXPECT_LT(short_text[0].gain, 0.02);
  EXPECT_GT(long_text[0].gain, 0.1);
}

TEST(Advice, UnalignedWidthCostsInEveryMatrix) {
  const auto advice = dimension_advice(gpt2(100, 4, 512), 32, 16);
  ASSERT_EQ(advice.size(), 2u);
  EXPECT_EQ(advice[0].key, "hidden_size");
  EXPECT_GT(advice[0].gain, 0.1);
  EXPECT_LT(advice[0].gain, 0.12);
}

}  // namespace
}  // namespace athanor
