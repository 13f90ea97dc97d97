// Standard deviations of initial weights by patterns of names.
#include <gtest/gtest.h>

#include "base/error.h"
#include "model/model.h"
#include "tests/tiny_model.h"

namespace athanor {
namespace {

ModelConfig with_ranges(std::vector<std::pair<std::string, double>> ranges) {
  ModelConfig m = testing::tiny_model(ModelType::llama,
                                      {.vocab = 64, .hidden = 16, .heads = 2, .intermediate = 24, .positions = 8});
  m.initializer_ranges = std::move(ranges);
  return m;
}

float std_of(const Model& model, const std::string& name) {
  for (const ParamSpec& spec : model.params().specs())
    for (const HfSlice& slice : spec.slices)
      if (slice.name == name) return spec.init_std;
  return -1;
}

std::string refusal(std::vector<std::pair<std::string, double>> ranges) {
  try {
    (void)make_model(with_ranges(std::move(ranges)));
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Exit::usage);
    return e.what();
  }
  return "";
}

TEST(InitializerRanges, FirstMatchingPatternSetsTheStandardDeviation) {
  const auto model =
      make_model(with_ranges({{"lm_head.weight", 0.5}, {"*.1.mlp.down_proj.weight", 0}, {"*_proj.weight", 0.1}}));
  EXPECT_EQ(std_of(*model, "lm_head.weight"), 0.5f);
  EXPECT_EQ(std_of(*model, "model.layers.1.mlp.down_proj.weight"), 0);
  EXPECT_EQ(std_of(*model, "model.layers.0.mlp.down_proj.weight"), 0.1f);
  EXPECT_EQ(std_of(*model, "model.layers.1.self_attn.q_proj.weight"), 0.1f);
  EXPECT_EQ(std_of(*model, "model.embed_tokens.weight"), 0.02f);  // initializer_range
}

TEST(InitializerRanges, InvalidPatternsAreRefused) {
  EXPECT_NE(refusal({{"*.up.weight", 0}}).find("\"*.up.weight\" fits no matrix"), std::string::npos);
  EXPECT_NE(refusal({{"model.norm.weight", 0}}).find("fits no matrix or embedding"), std::string::npos);
  const std::string apart = refusal({{"*.up_proj.weight", 0.3}});
  EXPECT_NE(apart.find("gate_proj.weight and model.layers.0.mlp.up_proj.weight are one matrix"), std::string::npos)
      << apart;
}

}  // namespace
}  // namespace athanor
