// The shapes of Qwen2-MoE and Qwen3-MoE: a gated shared expert, and layers without experts.
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/config/helpers.h"
#include "tests/temp_dir.h"

namespace athanor {
namespace {

using nlohmann::json;

json qwen2_moe_json(const json& more) {
  json j = {{"model_type", "qwen2_moe"},
            {"vocab_size", 1000},
            {"hidden_size", 64},
            {"num_hidden_layers", 6},
            {"num_attention_heads", 4},
            {"num_key_value_heads", 2},
            {"intermediate_size", 128},
            {"max_position_embeddings", 256},
            {"num_experts", 8},
            {"num_experts_per_tok", 3},
            {"moe_intermediate_size", 24},
            {"shared_expert_intermediate_size", 40}};
  j.update(more);
  return j;
}
json qwen3_moe_json(const json& more) {
  json j = qwen2_moe_json({{"model_type", "qwen3_moe"}, {"shared_expert_intermediate_size", nullptr}});
  j.update(more);
  return j;
}
std::string refusal_of_qwen(const json& more) { return error_of_model(qwen2_moe_json(more)); }

std::vector<int64_t> layers_with(const ModelConfig& m) {
  std::vector<int64_t> layers;
  for (int64_t l = 0; l < m.num_hidden_layers; ++l)
    if (has_experts(m, l)) layers.push_back(l);
  return layers;
}

TEST(Qwen2Moe, CountsDenseSharedAndRoutedLayers) {
  const ModelConfig m = read_model(qwen2_moe_json({{"mlp_only_layers", {0, 4}}}));
  const int64_t rest = 2 * 64 + 64 * 64 + 2 * 64 * 32 + 64 * 64 + (64 + 2 * 32), dense = 3 * 64 * 128;
  for (const auto& [experts, count] : {std::pair{8, parameter_count(m)}, {3, active_parameter_count(m)}})
    EXPECT_EQ(count,
              2 * 1000 * 64 + 6 * rest + 2 * dense + 4 * (8 * 64 + experts * 3 * 64 * 24 + 3 * 64 * 40 + 64) + 64);
}

// Every n-th layer, counted from the n-th, has experts unless it is listed; the order of the list has no meaning.
TEST(Qwen2Moe, KeysSayWhichLayersHaveExperts) {
  for (const auto& json_of : {qwen2_moe_json, qwen3_moe_json}) {
    EXPECT_EQ(layers_with(read_model(json_of(json::object()))), (std::vector<int64_t>{0, 1, 2, 3, 4, 5}));
    EXPECT_EQ(layers_with(read_model(json_of({{"mlp_only_layers", nullptr}}))).size(), 6u);
    EXPECT_EQ(layers_with(read_model(json_of({{"mlp_only_layers", {4, 0, 0}}}))), (std::vector<int64_t>{1, 2, 3, 5}));
    EXPECT_EQ(layers_with(read_model(json_of({{"decoder_sparse_step", 2}}))), (std::vector<int64_t>{1, 3, 5}));
    const json both = {{"decoder_sparse_step", 2}, {"mlp_only_layers", {2, 3}}};
    EXPECT_EQ(layers_with(read_model(json_of(both))), (std::vector<int64_t>{1, 5}));
  }
}

TEST(Qwen2Moe, ImpossibleShapesAreNamed) {
  expect_parts(refusal_of_qwen({{"mlp_only_layers", {6}}}), {"mlp_only_layers", "num_hidden_layers - 1, 5, got 6"});
  expect_parts(refusal_of_qwen({{"mlp_only_layers", {-1}}}), {"mlp_only_layers[0]", "-1"});
  expect_parts(refusal_of_qwen({{"mlp_only_layers", 3}}), {"mlp_only_layers", "list of layers"});
  expect_parts(refusal_of_qwen({{"mlp_only_layers", {0, 1, 2, 3, 4, 5}}}), {"mlp_only_layers", "none of the 6 layers"});
  expect_parts(refusal_of_qwen({{"decoder_sparse_step", 7}}), {"decoder_sparse_step", "none of the 6 layers"});
  expect_parts(refusal_of_qwen({{"decoder_sparse_step", 0}}), {"decoder_sparse_step", "got 0"});
  expect_parts(refusal_of_qwen({{"shared_expert_intermediate_size", nullptr}}),
               {"shared_expert_intermediate_size", "required for qwen2_moe"});
  expect_parts(refusal_of_qwen({{"moe_intermediate_size", nullptr}}),
               {"moe_intermediate_size", "required for qwen2_moe"});
  expect_parts(refusal_of_qwen({{"intermediate_size", nullptr}, {"mlp_only_layers", {0}}}),
               {"intermediate_size", "required for qwen2_moe"});
  EXPECT_EQ(read_model(qwen2_moe_json({{"intermediate_size", nullptr}})).intermediate_size, 24)
      << "nothing is that wide";
  expect_parts(refusal_of_qwen({{"qkv_bias", false}}), {"qkv_bias", "true"});
  model_refused(qwen3_moe_json({{"shared_expert_intermediate_size", 40}}),
                {"shared_expert_intermediate_size", "qwen3_moe has none, got 40"});
  json mixtral = qwen2_moe_json({{"model_type", "mixtral"}, {"moe_intermediate_size", nullptr}});
  mixtral.erase("shared_expert_intermediate_size");
  json other = mixtral;
  other["mlp_only_layers"] = {1};
  model_refused(other, {"mlp_only_layers", "mixtral has no dense layers between others, got 1 layer"});
  other = mixtral;
  other["decoder_sparse_step"] = 2;
  model_refused(other, {"decoder_sparse_step", "mixtral has no dense layers between others, got 2"});
  model_refused(with_key(llama_json(), "mlp_only_layers", {1}), {"mlp_only_layers", "llama has no experts"});
}

TEST(Qwen2Moe, ExportedConfigRoundTrips) {
  for (const json& more : {json{{"norm_topk_prob", true}, {"mlp_only_layers", {1, 4}}},
                           json{{"decoder_sparse_step", 3}}, json{{"sliding_window", 16}}})
    for (const auto& json_of : {qwen2_moe_json, qwen3_moe_json}) {
      const ModelConfig m = read_model(json_of(more));
      const std::string text = hf_config_json(m, "float32");
      EXPECT_EQ(model_text(parse_model_config(text, "exported")), model_text(m)) << text;
    }
  const json hf = json::parse(hf_config_json(read_model(qwen2_moe_json({{"sliding_window", 16}})), "float32"));
  EXPECT_EQ(hf["layer_types"], json(std::vector<std::string>(6, "sliding_attention")));
}

// Versions of transformers differ in the layers that have the window.
TEST(Qwen2Moe, PublishedWindowsNeedLayerTypes) {
  const testing::TempDir dir;
  const auto published = [&](const json& more) {
    const std::string path = cat(dir.path(), "/config.json");
    std::ofstream(path) << qwen2_moe_json(more).dump();
    return load_model_config(path, nullptr);
  };
  json j = {{"sliding_window", 32}, {"max_window_layers", 21}, {"use_sliding_window", false}};
  EXPECT_EQ(published(j).sliding_window, 0);
  j["layer_types"] = std::vector<std::string>(6, "full_attention");
  EXPECT_EQ(published(j).sliding_window, 0) << "as transformers 5 writes it";
  j["use_sliding_window"] = true;
  j["layer_types"] = std::vector<std::string>(6, "sliding_attention");
  EXPECT_EQ(published(j).sliding_window, 32);
  j.erase("layer_types");
  j["max_window_layers"] = 0;
  expect_parts(error_of([&] { published(j); }), {"use_sliding_window", "with layer_types"});
}

}  // namespace
}  // namespace athanor
