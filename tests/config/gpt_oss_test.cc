// The shape of GPT-OSS: layers with and without a window, and the clamp of its experts.
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/config/helpers.h"
#include "tests/temp_dir.h"

namespace athanor {
namespace {

using nlohmann::json;

json gpt_oss(const json& more) {
  json j = {{"model_type", "gpt_oss"},        {"vocab_size", 1000},       {"hidden_size", 64},
            {"num_hidden_layers", 3},         {"num_attention_heads", 4}, {"num_key_value_heads", 2},
            {"intermediate_size", 24},        {"num_local_experts", 8},   {"num_experts_per_tok", 3},
            {"max_position_embeddings", 256}, {"sliding_window", 16}};
  j.update(more);
  return j;
}

using enum LayerType;
using Types = std::vector<LayerType>;

TEST(GptOss, CountsBiasesAndSinks) {
  const int64_t attention = 64 * (64 + 2 * 32) + (64 + 2 * 32) + 64 * 64 + 64 + 4;
  const int64_t experts = 8 * 64 + 8 + 8 * (3 * 64 * 24 + 2 * 24 + 64);
  EXPECT_EQ(parameter_count(read_model(gpt_oss(json::object()))),
            2 * 1000 * 64 + 64 + 3 * (attention + 2 * 64 + experts));
}

TEST(GptOss, LayersTakeTurnsUnlessTheyAreListed) {
  EXPECT_EQ(read_model(gpt_oss(json::object())).layer_types,
            (Types{sliding_attention, full_attention, sliding_attention}));
  EXPECT_EQ(read_model(gpt_oss({{"sliding_window", nullptr}})).layer_types, Types(3, full_attention));
  const json listed = {"full_attention", "full_attention", "sliding_attention"};
  EXPECT_EQ(read_model(gpt_oss({{"layer_types", listed}})).layer_types,
            (Types{full_attention, full_attention, sliding_attention}));
}

TEST(GptOss, OtherValuesAreRefused) {
  const auto refused = [](const json& more, std::initializer_list<std::string> parts) {
    expect_parts(error_of_model(gpt_oss(more)), parts);
  };
  refused({{"swiglu_limit", 0}}, {"swiglu_limit", "more than 0"});
  refused({{"swiglu_alpha", 1.5}}, {"swiglu_alpha", "1.702"});
  refused({{"norm_topk_prob", false}}, {"norm_topk_prob", "gpt_oss has true"});
  refused({{"attention_sinks", false}}, {"attention_sinks", "gpt_oss has attention_sinks true"});
  refused({{"attention_bias", false}}, {"attention_bias", "gpt_oss has true"});
  refused({{"layer_types", {"full_attention"}}}, {"layer_types", "1 entries for the 3 layers"});
  refused({{"layer_types", json(std::vector<std::string>(3, "sparse_attention"))}},
          {"layer_types", "sparse_attention"});
  model_refused(with_key(llama_json(), "swiglu_limit", 7), {"swiglu_limit", "llama does not clamp, got 7"});
}

TEST(GptOss, ExportedConfigRoundTrips) {
  for (const json& more : {json::object(), json{{"sliding_window", 0}, {"swiglu_limit", 3.5}}}) {
    const ModelConfig m = read_model(gpt_oss(more));
    const std::string exported = hf_config_json(m, "float32");
    const ModelConfig back = parse_model_config(exported, "exported");
    EXPECT_EQ(hf_config_json(back, "float32"), exported);
    EXPECT_EQ(std::tuple(back.swiglu_limit, back.layer_types, back.num_experts, back.attention_sinks),
              std::tuple(m.swiglu_limit, m.layer_types, 8, true));
  }
}

// The file of openai/gpt-oss-20b, of fewer layers; its large coefficient of the balance loss is not used.
TEST(GptOss, ReadsThePublishedConfig) {
  const testing::TempDir dir;
  const std::string path = cat(dir.path(), "/config.json");
  std::ofstream(path) << R"({"architectures": ["GptOssForCausalLM"], "attention_bias": true, "attention_dropout": 0.0,
      "eos_token_id": 200002, "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2880,
      "initial_context_length": 4096, "initializer_range": 0.02, "intermediate_size": 2880, "layer_types":
      ["sliding_attention", "full_attention"], "max_position_embeddings": 131072, "model_type": "gpt_oss",
      "num_attention_heads": 64, "num_experts_per_tok": 4, "num_hidden_layers": 2, "num_key_value_heads": 8,
      "num_local_experts": 32, "output_router_logits": false, "pad_token_id": 199999, "quantization_config":
      {"modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"], "quant_method": "mxfp4"}, "rms_norm_eps": 1e-05,
      "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096,
      "rope_type": "yarn", "truncate": false}, "rope_theta": 150000, "router_aux_loss_coef": 0.9, "sliding_window": 128,
      "swiglu_limit": 7.0, "tie_word_embeddings": false, "use_cache": true, "vocab_size": 201088})";
  const ModelConfig m = load_model_config(path, nullptr);
  EXPECT_EQ(std::tuple(m.num_experts, m.moe_intermediate_size, m.router_aux_loss_coef, m.swiglu_limit),
            std::tuple(32, 2880, 0.0, 7.0));
  EXPECT_FALSE(m.rope_scaling.truncate);
  std::ofstream(path) << R"({"model_type": "gpt_oss", "num_hidden_layers": 2})";
  const ModelConfig defaults = load_model_config(path, nullptr);
  EXPECT_EQ(std::tuple(defaults.num_experts, defaults.rope_theta, defaults.rope_scaling.factor, defaults.head_dim),
            std::tuple(128, 150000.0, 32.0, 64));
  EXPECT_EQ(defaults.layer_types, (Types{sliding_attention, full_attention}));
}

}  // namespace
}  // namespace athanor
