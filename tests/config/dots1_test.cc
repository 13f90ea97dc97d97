// The shape of dots.llm1: DeepSeek-V3's routing, shared experts and dense first layers.
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/config/helpers.h"
#include "tests/temp_dir.h"

namespace athanor {
namespace {

using nlohmann::json;

json dots1(const json& more) {
  json j = {{"model_type", "dots1"},       {"vocab_size", 1000},
            {"hidden_size", 64},           {"num_hidden_layers", 2},
            {"num_attention_heads", 4},    {"num_key_value_heads", 2},
            {"intermediate_size", 128},    {"max_position_embeddings", 256},
            {"n_routed_experts", 8},       {"num_experts_per_tok", 3},
            {"moe_intermediate_size", 24}, {"n_shared_experts", 2}};
  j.update(more);
  return j;
}
std::string refusal(const json& more) { return error_of_model(dots1(more)); }

TEST(Dots1, CountsDenseSharedAndRoutedLayers) {
  const ModelConfig m = read_model(dots1({{"n_group", 4}, {"topk_group", 2}, {"first_k_dense_replace", 1}}));
  EXPECT_EQ(m.num_experts, 8);
  EXPECT_EQ(m.scoring_func, RouterScore::sigmoid);
  EXPECT_EQ(m.router_aux_loss_coef, 0);
  EXPECT_FALSE(has_experts(m, 0));
  EXPECT_TRUE(has_experts(m, 1));
  const int64_t rest = 2 * 64 + 64 * 64 + 2 * 64 * 32 + 64 * 64 + 2 * 16, dense = 3 * 64 * 128;
  for (const auto& [experts, count] : {std::pair{8, parameter_count(m)}, {3, active_parameter_count(m)}})
    EXPECT_EQ(count, 2 * 1000 * 64 + 2 * rest + dense + 8 * 64 + (experts + 2) * 3 * 64 * 24 + 64);
}

TEST(Dots1, ImpossibleRoutingIsNamed) {
  expect_parts(refusal({{"n_group", 3}}), {"n_group", "8 experts", "in 3 groups"});
  expect_parts(refusal({{"n_group", 8}}), {"n_group", "two experts"});
  expect_parts(refusal({{"n_group", 4}, {"topk_group", 1}}), {"topk_group", "groups of 2 experts", "got 1"});
  expect_parts(refusal({{"n_group", 4}, {"topk_group", 5}}), {"topk_group", "at most n_group 4"});
  expect_parts(refusal({{"first_k_dense_replace", 2}}), {"first_k_dense_replace", "num_hidden_layers 2"});
  expect_parts(refusal({{"scoring_func", "softmax"}}), {"scoring_func", "dots1 has sigmoid, got softmax"});
  expect_parts(refusal({{"moe_intermediate_size", nullptr}}), {"moe_intermediate_size", "required for dots1"});
  for (const char* key : {"n_group", "topk_group", "n_shared_experts", "first_k_dense_replace"}) {
    json other = dots1({{"model_type", "mixtral"}, {"moe_intermediate_size", nullptr}, {"n_shared_experts", 0}});
    other[key] = 2;
    model_refused(other, {key, "mixtral has none, got 2"});
  }
}

TEST(Dots1, ExportedConfigRoundTrips) {
  const ModelConfig m = read_model(
      dots1({{"n_group", 4}, {"topk_group", 3}, {"routed_scaling_factor", 2.5}, {"first_k_dense_replace", 1}}));
  const ModelConfig back = parse_model_config(hf_config_json(m, "float32"), "exported");
  EXPECT_EQ(hf_config_json(back, "float32"), hf_config_json(m, "float32"));
  EXPECT_EQ(std::tuple(back.n_group, back.topk_group, back.routed_scaling_factor, back.first_k_dense_replace),
            std::tuple(4, 3, 2.5, 1));
  const std::string without = hf_config_json(read_model(dots1({{"n_shared_experts", nullptr}})), "float32");
  EXPECT_EQ(json::parse(without)["n_shared_experts"], 0) << "transformers multiplies by it";
}

// Layers from max_window_layers on have the window; published files name the scores by the method that balances them.
TEST(Dots1, ReadsThePublishedConfig) {
  const testing::TempDir dir;
  const auto published = [&](const json& j) {
    const std::string path = cat(dir.path(), "/config.json");
    std::ofstream(path) << j.dump();
    std::vector<std::string> notices;
    const ModelConfig m = load_model_config(path, &notices);
    for (const std::string& notice : notices) EXPECT_EQ(notice.find("gpt2 name"), notice.npos) << notice;
    return m;
  };
  json j = dots1({{"sliding_window", nullptr}, {"max_window_layers", 62}, {"moe_layer_freq", 1}});
  j.update({{"scoring_func", "noaux_tc"}, {"topk_method", "noaux_tc"}});
  EXPECT_EQ(published(j).scoring_func, RouterScore::sigmoid);
  EXPECT_EQ(published(j).sliding_window, 0);
  j["sliding_window"] = 16;
  EXPECT_EQ(published(j).sliding_window, 0) << "62 layers come first";
  j["max_window_layers"] = 0;
  EXPECT_EQ(published(j).sliding_window, 16);
  j.erase("hidden_size");
  EXPECT_EQ(published(j).hidden_size, 4608);
}

}  // namespace
}  // namespace athanor
