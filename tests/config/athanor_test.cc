// Model options that only model_type athanor exposes: read, written, and refused in invalid combinations.
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/config/helpers.h"

namespace athanor {
namespace {

using nlohmann::json;

json athanor_json() {
  json j = with_key(llama_json(), "model_type", "athanor");
  j.update(json::parse(R"({"hidden_act": "relu2", "gated_mlp": false, "mlp_bias": true, "attention_bias": true,
      "lm_head_bias": true, "norm_elementwise_affine": false, "embedding_norm": true, "sublayer_norm": "both",
      "qk_norm": true, "qk_norm_elementwise_affine": false, "attention_multiplier": 0.12,
      "attn_logit_softcapping": 20.0, "attention_sinks": true, "sliding_window": 9,
      "layer_types": ["sliding_attention", "full_attention"], "resid_lambdas": [1.0], "x0_lambdas": [0.2, 0.1],
      "skip_from": [null, null, 0], "skip_lambdas": [-0.2], "value_embeddings": [0, null],
      "value_embedding_lambdas": [0.5], "value_residual_lambdas": [0.25], "value_lambdas": [0.75, 1],
      "value_gate_channels": 12, "value_gate_scale": 3.0, "attention_gate_channels": 11, "smear_channels": 10,
      "rope_scaling": {"rope_type": "proportional", "partial_rotary_factor": 0.5},
      "initializer_ranges": {"*.down_proj.weight": 0, "lm_head.weight": 0.001}})"));
  return j;
}

TEST(Athanor, OptionsRoundTripThroughTheCheckpointConfig) {
  const ModelConfig m = read_model(athanor_json());
  EXPECT_EQ(model_text(parse_model_config(hf_config_json(m, "float32"), "config.json")), model_text(m));
  EXPECT_EQ(json::parse(hf_config_json(m, "float32"))["model_type"], "athanor");
  EXPECT_EQ(m.resid_lambdas, (std::vector<double>{1, 1}));  // one for all
  EXPECT_EQ(m.skip_lambdas, (std::vector<double>{-0.2, -0.2, -0.2}));
  EXPECT_EQ(window_of(m, 0), 9);
  EXPECT_EQ(window_of(m, 1), 0);
  EXPECT_EQ(option_of_athanor(m), "hidden_act \"relu2\"");
  EXPECT_EQ(option_of_athanor(read_model(with_key(llama_json(), "model_type", "athanor"))), "");
}

TEST(Athanor, OtherFamiliesRefuseItsOptions) {
  const json all = athanor_json();
  std::istringstream keys(
      "gated_mlp lm_head_bias norm_elementwise_affine embedding_norm sublayer_norm qk_norm_elementwise_affine "
      "attention_multiplier attn_logit_softcapping attention_sinks resid_lambdas x0_lambdas skip_from "
      "skip_lambdas value_embeddings value_embedding_lambdas value_residual_lambdas value_lambdas "
      "value_gate_channels value_gate_scale attention_gate_channels smear_channels rope_scaling");
  for (std::string key; keys >> key;)
    model_refused(with_key(llama_json(), key, all[key]), {cat("model.", key), "llama ", "model_type athanor"});
  EXPECT_EQ(error_of_model(with_key(llama_json(), "initializer_ranges", all["initializer_ranges"])), "");
}

TEST(Athanor, ListsNeedOneEntryPerLayer) {
  const json all = athanor_json();
  const auto refused = [&](const char* key, const json& value, const std::vector<std::string>& parts) {
    model_refused(with_key(all, key, value), parts);
  };
  refused("layer_types", {"full_attention"}, {"layer_types: 1 entries for the 2 layers of num_hidden_layers"});
  refused("layer_types", {"full_attention", "full_attention"}, {"sliding_window: 9", "layer_types"});
  refused("sliding_window", 0, {"layer_types", "sliding_window is 0"});
  refused("x0_lambdas", {1, 2, 3}, {"x0_lambdas: 3 entries", "num_hidden_layers"});
  refused("x0_lambdas", nullptr, {"resid_lambdas: needs x0_lambdas"});
  refused("skip_lambdas", nullptr, {"skip_from: needs skip_lambdas"});
  refused("skip_from", nullptr, {"skip_lambdas: needs skip_from"});
  refused("skip_from", {nullptr, 0}, {"skip_from: 2 entries for the 2 layers", "final norm"});
  refused("skip_from", {nullptr, 1, 0}, {"skip_from[1]: expected a block before it", "got 1"});
  refused("value_embeddings", {0}, {"value_embeddings: 1 entries for the 2 layers"});
  refused("value_embeddings", {0, 2}, {"value_embeddings: no layer has table 1 of the tables 0 to 2"});
  refused("value_embeddings", {nullptr, nullptr}, {"value_embeddings", "got null for all"});
  refused("value_embeddings", nullptr, {"value_embedding_lambdas: needs value_embeddings"});
  refused("value_lambdas", {1, 2, 3}, {"value_lambdas: 3 entries"});
  refused("smear_channels", 1000, {"smear_channels: 1000 channels are more than hidden_size"});
  refused("qk_norm", false, {"qk_norm_elementwise_affine", "qk_norm, which is false"});
  refused("hidden_act", "swish", {"model.hidden_act", "relu2"});
}

json sparse_json() {
  json j = with_key(athanor_json(), "layer_types", {"sparse_attention", "full_attention"});
  j.update({{"sliding_window", nullptr},
            {"sparse_block_size", 16},
            {"sparse_local_blocks", 4},
            {"sparse_global_blocks", 1}});
  return j;
}

TEST(Athanor, SparseLayersRequireTheirKeys) {
  const ModelConfig m = read_model(sparse_json());
  EXPECT_EQ(model_text(parse_model_config(hf_config_json(m, "float32"), "config.json")), model_text(m));
  EXPECT_EQ(sparse_pattern_of(m, 0).group, 64);
  EXPECT_EQ(sparse_pattern_of(m, 0).summary, 16);
  EXPECT_EQ(sparse_pattern_of(m, 1).group, 0);
  EXPECT_EQ(window_of(m, 0), 0);
  const auto refused = [](const char* key, const json& value, const std::vector<std::string>& parts) {
    model_refused(with_key(sparse_json(), key, value), parts);
  };
  refused("layer_types", {"full_attention", "full_attention"}, {"sparse_block_size: 16", "layer_types"});
  refused("layer_types", nullptr, {"sparse_block_size: 16", "layer_types"});
  refused("sparse_block_size", 0, {"layer_types", "sparse_block_size is 0"});
  refused("sparse_local_blocks", 0, {"layer_types", "sparse_local_blocks is 0"});
  refused("sparse_global_blocks", 5, {"sparse_global_blocks", "sparse_local_blocks", "got 5"});
  refused("sparse_global_blocks", 4, {"sparse_global_blocks", "sparse_local_blocks", "it is full_attention"});
  refused("sparse_global_blocks", -1, {"sparse_global_blocks", "-1"});
  refused("sliding_window", 9, {"sliding_window: 9", "layer_types"});
  EXPECT_EQ(error_of_model(with_key(sparse_json(), "sparse_global_blocks", 0)), "");
  for (const char* key : {"sparse_block_size", "sparse_local_blocks", "sparse_global_blocks"})
    model_refused(with_key(llama_json(), key, 2), {cat("model.", key), "llama ", "model_type athanor"});
  const json all = with_key(sparse_json(), "layer_types", {"sparse_attention", "sparse_attention"});
  expect_parts(error_in(small_config("", all.dump()), {"context_parallel_size=2"}),
               {"model.layer_types: sparse_attention", "context_parallel_size"});
}

TEST(Athanor, ConflictingKeysAreBothNamed) {
  const auto refused = [](std::vector<std::string> sets, const std::vector<std::string>& parts) {
    expect_parts(error_in(small_config("", athanor_json().dump()), std::move(sets)), parts);
  };
  refused({"pipeline_parallel_size=2"}, {"model.x0_lambdas", "pipeline_parallel_size"});
  refused({"pipeline_parallel_size=2", "model.x0_lambdas=null", "model.resid_lambdas=null"},
          {"model.skip_from", "pipeline_parallel_size"});
  std::vector<std::string> stages{"pipeline_parallel_size=2", "model.x0_lambdas=null", "model.resid_lambdas=null",
                                  "model.skip_from=null", "model.skip_lambdas=null"};
  refused(stages, {"model.value_embeddings", "pipeline_parallel_size"});
  stages.insert(stages.end(),
                {"model.value_embeddings=null", "model.value_embedding_lambdas=null", "model.value_gate_channels=0"});
  refused(stages, {"model.value_residual_lambdas", "pipeline_parallel_size"});
  refused({"tensor_parallel_size=4", "model.num_attention_heads=4", "model.num_key_value_heads=2"},
          {"model.value_embeddings", "tensor_parallel_size", "num_key_value_heads"});
  refused({"context_parallel_size=2"}, {"model.layer_types", "context_parallel_size"});
  refused({"qk_clip_threshold=100", "model.qk_norm=false", "model.qk_norm_elementwise_affine=true"},
          {"qk_clip_threshold", "model.attn_logit_softcapping"});
  refused({"mup_base_width=32"}, {"mup_base_width", "model.initializer_ranges"});
  refused({"mup_base_width=32", "model.initializer_ranges=null"}, {"mup_base_width", "norm_elementwise_affine"});
  refused({"mup_base_width=32", "model.initializer_ranges=null", "model.norm_elementwise_affine=true"},
          {"mup_base_width", "model.attention_gate_channels", "model.value_gate_channels", "model.smear_channels"});
}

}  // namespace
}  // namespace athanor
