// Frequencies of stretched rotary embeddings against those of transformers 5.23 (ROPE_INIT_FUNCTIONS), head_dim 16.
#include <gtest/gtest.h>

#include <cmath>

#include "model/model.h"

namespace athanor {
namespace {

ModelConfig with(const RopeScaling& scaling, double theta = 500) {
  ModelConfig m = model_defaults(ModelType::llama);
  m.head_dim = 16;
  m.rope_theta = theta;
  m.rope_scaling = scaling;
  return m;
}

void expect(const ModelConfig& m, double factor, const std::vector<double>& frequencies) {
  EXPECT_NEAR(attention_factor(m.rope_scaling), factor, 1e-12);
  const std::vector<double> got = rope_frequencies(m);
  ASSERT_EQ(got.size(), frequencies.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], frequencies[i], 3e-7 * frequencies[i]) << i;
}

RopeScaling yarn() { return {.rope_type = RopeType::yarn, .factor = 4, .original_max_position_embeddings = 16}; }

TEST(Rope, YarnMatchesTransformers) {
  expect(with(yarn()), 1.138629436111989,
         {1.0, 0.28741455078125, 0.0528685599565506, 0.02431231178343296, 0.011180340312421322, 0.005141428206115961,
          0.0023643539752811193, 0.0010872796410694718});
}

TEST(Rope, ProportionalRotatesOnlyHighFrequencies) {
  expect(with({.rope_type = RopeType::proportional, .partial_rotary_factor = 0.5}), 1,
         {1.0, 0.459863298, 0.211474253, 0.0972492472, 0, 0, 0, 0});  // 500^(-i/8)
  expect(with({.rope_type = RopeType::proportional, .factor = 2, .partial_rotary_factor = 0.3}), 1,
         {0.5, 0.229931649, 0, 0, 0, 0, 0, 0});  // 0.3 of 8 pairs: two whole ones
}

TEST(Rope, YarnUsesItsOwnAttentionFactors) {
  RopeScaling s = yarn();
  s.beta_fast = 20, s.beta_slow = 2, s.attention_factor = 1.3;
  expect(with(s), 1.3,
         {1.0, 0.11496581882238388, 0.0528685599565506, 0.02431231178343296, 0.011180340312421322, 0.005141428206115961,
          0.0023643539752811193, 0.0010872796410694718});
  s = yarn();
  s.mscale = 1.1, s.mscale_all_dim = 0.7;
  EXPECT_NEAR(attention_factor(s), 1.0505466927823732, 1e-12);
  s.mscale_all_dim = 0;
  EXPECT_NEAR(attention_factor(s), 1.138629436111989, 1e-12) << "one of the two alone says nothing";
}

TEST(Rope, YarnSupportsUnroundedBounds) {
  RopeScaling s = yarn();
  s.truncate = false;
  expect(with(s), 1.138629436111989,
         {1.0, 0.17322374880313873, 0.0528685599565506, 0.02431231178343296, 0.011180340312421322, 0.005141428206115961,
          0.0023643539752811193, 0.0010872796410694718});
}

TEST(Rope, YarnSupportsEqualBounds) {
  RopeScaling s = yarn();
  s.original_max_position_embeddings = 4;
  expect(with(s, 1e6), 1.138629436111989,
         {1.0, 0.04445698484778404, 0.007905694656074047, 0.0014058533124625683, 0.0002500000118743628,
          4.4456985051510856e-05, 7.905693564680405e-06, 1.405853367941745e-06});
}

TEST(Rope, Llama3AndLinearMatchTransformers) {
  expect(with({.rope_type = RopeType::llama3,
               .factor = 8,
               .original_max_position_embeddings = 32,
               .low_freq_factor = 1,
               .high_freq_factor = 4}),
         1,
         {1.0, 0.23748968541622162, 0.031185457482933998, 0.01215615589171648, 0.005590170156210661,
          0.0025707141030579805, 0.0011821769876405597, 0.0005436398205347359});
  expect(with({.rope_type = RopeType::linear, .factor = 2.5}), 1,
         {0.4000000059604645, 0.18394531309604645, 0.08458969742059708, 0.03889969736337662, 0.017888544127345085,
          0.008226284757256508, 0.0037829664070159197, 0.0017396474722772837});
}

TEST(Rope, TableHoldsScaledCosinesAndSines) {
  const ModelConfig m = with(yarn());
  const auto table = rope_table(m, 3);
  ASSERT_EQ(table.size(), 3u * 16);
  const double angle = 2 * rope_frequencies(m)[1], factor = attention_factor(m.rope_scaling);
  EXPECT_NEAR(table[2 * 16 + 1], factor * std::cos(angle), 1e-6);
  EXPECT_NEAR(table[2 * 16 + 8 + 1], factor * std::sin(angle), 1e-6);
}

}  // namespace
}  // namespace athanor
