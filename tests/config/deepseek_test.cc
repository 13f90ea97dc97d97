// The shape of DeepSeek-V3: multi-head latent attention, with the experts of dots1.
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/config/helpers.h"
#include "tests/temp_dir.h"

namespace athanor {
namespace {

using nlohmann::json;

json deepseek(const json& more) {
  json j = {{"model_type", "deepseek_v3"},
            {"vocab_size", 1000},
            {"hidden_size", 64},
            {"num_hidden_layers", 2},
            {"num_attention_heads", 4},
            {"intermediate_size", 128},
            {"max_position_embeddings", 256},
            {"n_routed_experts", 8},
            {"num_experts_per_tok", 3},
            {"moe_intermediate_size", 24},
            {"n_shared_experts", 2},
            {"first_k_dense_replace", 1},
            {"q_lora_rank", 20},
            {"kv_lora_rank", 12},
            {"qk_nope_head_dim", 10},
            {"qk_rope_head_dim", 6},
            {"v_head_dim", 14}};
  j.update(more);
  return j;
}

TEST(Deepseek, CountsTheMatricesOfLatentAttention) {
  const int64_t rest = 2 * 1000 * 64 + 64 + 2 * 2 * 64 + 3 * 64 * 128 + 8 * 64 + (8 + 2) * 3 * 64 * 24;
  const int64_t keys_and_values = (12 + 6) * 64 + 12 + 4 * (10 + 14) * 12, outputs = 4 * 14 * 64;
  const int64_t with_rank = 20 * 64 + 20 + 4 * 16 * 20, without = 4 * 16 * 64;
  EXPECT_EQ(parameter_count(read_model(deepseek(json::object()))), rest + 2 * (with_rank + keys_and_values + outputs));
  EXPECT_EQ(parameter_count(read_model(deepseek(json::object({{"q_lora_rank", nullptr}})))),
            rest + 2 * (without + keys_and_values + outputs));
}

TEST(Deepseek, ImpossibleSizesAreNamed) {
  const auto refused = [](const json& more, std::initializer_list<std::string> parts) {
    expect_parts(error_of_model(deepseek(more)), parts);
  };
  for (const char* key : {"kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"}) {
    refused({{key, nullptr}}, {key, "required for deepseek_v3"});
    model_refused(with_key(llama_json(), key, 4), {key, "llama has no latent attention, got 4", "leave it out"});
  }
  refused({{"qk_rope_head_dim", 5}}, {"qk_rope_head_dim", "even number, got 5"});
  refused({{"head_dim", 12}}, {"head_dim", "10 + 6, got 12", "leave it out"});
  refused({{"v_head_dim", 17}}, {"v_head_dim", "at most", "16, got 17"});
  refused({{"num_key_value_heads", 2}}, {"num_key_value_heads", "num_attention_heads, 4, got 2"});
  refused({{"attention_bias", true}}, {"attention_bias", "deepseek_v3 has false"});
  refused({{"sliding_window", 8}}, {"sliding_window", "deepseek_v3 has none"});
  refused({{"rope_scaling", {{"rope_type", "proportional"}, {"partial_rotary_factor", 0.5}}}},
          {"rope_scaling.rope_type", "qk_rope_head_dim", "another rope_type"});
  model_refused(with_key(llama_json(), "rope_interleave", true), {"rope_interleave", "llama has false"});
}

TEST(Deepseek, ExportedConfigRoundTrips) {
  for (const json& more : {json::object(), json{{"q_lora_rank", nullptr}, {"rope_interleave", false}}}) {
    const ModelConfig m = read_model(deepseek(more));
    const std::string exported = hf_config_json(m, "float32");
    const ModelConfig back = parse_model_config(exported, "exported");
    EXPECT_EQ(hf_config_json(back, "float32"), exported);
    EXPECT_EQ(std::tuple(back.q_lora_rank, back.kv_lora_rank, back.head_dim, back.qk_rope_head_dim, back.v_head_dim,
                         back.rope_interleave),
              std::tuple(m.q_lora_rank, 12, 16, 6, 14, m.rope_interleave));
  }
}

// Published files have keys of DeepSeek's own code, and files of transformers a head_dim that is that of RoPE.
TEST(Deepseek, ReadsThePublishedConfig) {
  const testing::TempDir dir;
  json j = deepseek({{"head_dim", 6}, {"qk_head_dim", 16}, {"num_key_value_heads", 4}, {"attention_bias", false}});
  j.update(json::parse(R"({"auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"}, "ep_size": 1,
      "aux_loss_alpha": 0.001, "seq_aux": true, "num_nextn_predict_layers": 1, "moe_layer_freq": 1,
      "scoring_func": "sigmoid", "topk_method": "noaux_tc", "rope_scaling": {"beta_fast": 32, "beta_slow": 1,
      "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096, "type": "yarn"}})"));
  j.update({{"n_group", 1}, {"topk_group", 1}});
  j.erase("kv_lora_rank");
  const std::string path = cat(dir.path(), "/config.json");
  std::ofstream(path) << j.dump();
  const ModelConfig m = load_model_config(path, nullptr);
  EXPECT_EQ(m.head_dim, 16);
  EXPECT_EQ(m.kv_lora_rank, 512);
  EXPECT_TRUE(m.rope_interleave);
  EXPECT_DOUBLE_EQ(attention_factor(m.rope_scaling), 1);
  j["model_type"] = "kimi_k2";
  std::ofstream(path) << j.dump();
  EXPECT_EQ(load_model_config(path, nullptr).model_type, ModelType::deepseek_v3);
}

// transformers chooses among all experts unless topk_method says otherwise, and never divides the weights.
TEST(Deepseek, V2ReadsTheMethodOfChoice) {
  const testing::TempDir dir;
  const auto published = [&](const json& more) {
    const std::string path = cat(dir.path(), "/config.json");
    json j = deepseek({{"model_type", "deepseek_v2"}, {"n_group", 4}, {"topk_group", 2}});
    j.update(more);
    std::ofstream(path) << j.dump();
    return load_model_config(path, nullptr);
  };
  EXPECT_EQ(published(json::object()).n_group, 1);
  EXPECT_EQ(published({{"topk_method", "greedy"}}).n_group, 1);
  const ModelConfig groups = published({{"topk_method", "group_limited_greedy"}});
  EXPECT_EQ(std::tuple(groups.n_group, groups.topk_group, groups.scoring_func, groups.rope_interleave),
            std::tuple(4, 2, RouterScore::softmax, true));
  EXPECT_EQ(hf_config_json(parse_model_config(hf_config_json(groups, "float32"), "exported"), "float32"),
            hf_config_json(groups, "float32"));
  expect_parts(error_of([&] {
                 published({{"topk_method", "noaux_tc"}});
               }),
               {"topk_method", "\"greedy\" or \"group_limited_greedy\""});
  expect_parts(error_of([&] {
                 published({{"norm_topk_prob", true}});
               }),
               {"norm_topk_prob", "deepseek_v2 has false, got true"});
}

}  // namespace
}  // namespace athanor
