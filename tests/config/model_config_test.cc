// Model shapes: Hugging Face files in and out, family rules, sizes that cannot be built.
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/config/helpers.h"
#include "tests/temp_dir.h"

namespace athanor {
namespace {

using nlohmann::json;

TEST(ModelConfig, FamiliesSetBiasQkNormAndHeadDim) {
  const ModelConfig llama = read_model(llama_json());
  EXPECT_FALSE(llama.attention_bias || llama.qk_norm || llama.tie_word_embeddings);
  EXPECT_EQ(llama.head_dim, 16);
  EXPECT_TRUE(read_model(with_key(llama_json(), "model_type", "qwen2")).attention_bias);
  EXPECT_TRUE(read_model(with_key(llama_json(), "model_type", "qwen3")).qk_norm);
  EXPECT_FALSE(read_model(with_key(llama_json(), "model_type", "mistral")).attention_bias);
}

TEST(ModelConfig, PublishedGpt2ConfigIsReadWithoutDropout) {
  json j = json::parse(R"({"activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
      "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02,
      "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12,
      "n_positions": 1024, "resid_pdrop": 0.1, "summary_activation": null, "summary_first_dropout": 0.1,
      "summary_proj_to_labels": true, "summary_type": "cls_index", "summary_use_proj": true,
      "task_specific_params": {"text-generation": {"do_sample": true}}, "vocab_size": 50257})");
  model_refused(j, {"config.json:1: model.attn_pdrop", "dropout is not supported", "got 0.1"});
  for (auto key : {"attn_pdrop", "embd_pdrop", "resid_pdrop"}) j[key] = 0;
  const ModelConfig m = read_model(j);
  EXPECT_EQ(m.hidden_size, 768);
  EXPECT_EQ(m.num_attention_heads, 12);
  EXPECT_EQ(parameter_count(m), 124439808);
  model_refused(with_key(j, "n_ctx", 512), {"n_ctx", "1024"});
  model_refused(with_key(j, "activation_function", "relu"), {"activation_function", "gelu_new", "relu"});
}

// transformers writes the published ids of GPT-2 into files of models with fewer tokens, too.
TEST(ModelConfig, TokenIdsBeyondTheVocabularyAreDropped) {
  const testing::TempDir dir;
  const std::string path = dir / "config.json";
  std::ofstream(path) << R"({"model_type": "gpt2", "vocab_size": 100, "n_embd": 8, "n_layer": 1, "n_head": 1,
                             "n_positions": 8, "bos_token_id": 50256, "eos_token_id": 99})";
  std::vector<std::string> notices;
  const ModelConfig m = load_model_config(path, &notices);
  EXPECT_EQ(m.bos_token_id, -1);
  EXPECT_EQ(m.eos_token_id, 99);
  EXPECT_TRUE(std::ranges::any_of(notices, [](const std::string& n) {
    return n.find("bos_token_id 50256 is left out: vocab_size is 100") != std::string::npos;
  }));
}

// Each family has exactly one activation, under any of the keys that name it.
TEST(ModelConfig, ActivationsOfOtherFamiliesAreRefused) {
  json gpt2 = {{"model_type", "gpt2"}, {"n_embd", 64},      {"n_head", 4},
               {"n_layer", 2},         {"n_positions", 32}, {"vocab_size", 99}};
  EXPECT_EQ(read_model(with_key(gpt2, "hidden_act", "gelu_new")).hidden_size, 64);
  model_refused(with_key(gpt2, "hidden_act", "silu"), {"model.hidden_act", "gelu_new", "gpt2 has", "silu"});
  model_refused(with_key(gpt2, "mlp_bias", false), {"model.mlp_bias", "gpt2 has biases"});
  EXPECT_EQ(read_model(with_key(llama_json(), "activation_function", "silu")).hidden_size, 64);
  model_refused(with_key(llama_json(), "activation_function", "gelu_new"),
                {"model.activation_function", "\"silu\"", "all families but gpt2", "gelu_new"});
  model_refused(with_key(llama_json(), "hidden_act", "gelu_new"), {"model.hidden_act", "\"silu\"", "but gpt2"});
}

TEST(ModelConfig, UnsupportedValuesAreNamed) {
  model_refused(with_key(llama_json(), "hidden_act", "gelu"), {"hidden_act", "silu", "gelu"});
  model_refused(with_key(llama_json(), "mlp_bias", true), {"mlp_bias", "got true"});
  model_refused(with_key(llama_json(), "attention_dropout", 0.5), {"attention_dropout", "0.5"});
  model_refused(with_key(llama_json(), "attention_bias", true), {"attention_bias", "llama has false"});
  model_refused(with_key(llama_json(), "qk_norm", true), {"qk_norm", "llama has false"});
  model_refused(with_key(llama_json(), "sliding_window", 8), {"sliding_window", "llama has none"});
  model_refused(with_key(llama_json(), "quantization_config", json::object()), {"quantization_config", "plain floats"});
  const json other = {{"quant_method", "compressed-tensors"}, {"format", "int-quantized"}};
  model_refused(with_key(llama_json(), "quantization_config", other),
                {"quantization_config", "float-quantized", "pack-quantized"});
  const json ints = {{"quant_method", "compressed-tensors"}, {"format", "pack-quantized"}};
  EXPECT_EQ(read_model(with_key(llama_json(), "quantization_config", ints)).hidden_size, 64);
  json gptq = {{"quant_method", "gptq"}, {"checkpoint_format", "gptq"}};
  EXPECT_EQ(read_model(with_key(llama_json(), "quantization_config", gptq)).hidden_size, 64);
  gptq["checkpoint_format"] = "gptq_v2";
  model_refused(with_key(llama_json(), "quantization_config", gptq), {"quantization_config", "gptq"});
  EXPECT_EQ(read_model(with_key(llama_json(), "quantization_config", {{"quant_method", "fp8"}})).hidden_size, 64);
  model_refused(with_key(llama_json(), "num_local_experts", 8), {"num_experts", "llama has no experts"});
  model_refused(with_key(llama_json(), "n_routed_experts", 8), {"num_experts", "mixtral, qwen2_moe"});
  EXPECT_EQ(read_model(with_key(llama_json(), "num_experts", 0)).hidden_size, 64);
  model_refused(with_key(llama_json(), "model_type", "lama"), {"gpt2, llama", "did you mean \"llama\"?"});
  json qwen = with_key(with_key(llama_json(), "model_type", "qwen2"), "sliding_window", 8);
  model_refused(with_key(qwen, "use_sliding_window", true), {"use_sliding_window", "max_window_layers 0"});
  model_refused(with_key(qwen, "layer_types", {"full_attention", "sliding_attention"}), {"layer_types"});
}

TEST(ModelConfig, OldAndNewRopeKeysAgree) {
  const json v5 = {{"rope_type", "linear"}, {"factor", 2.0}, {"rope_theta", 5e5}};
  const json v4 = {{"type", "linear"}, {"factor", 2.0}};
  const ModelConfig a = read_model(with_key(llama_json(), "rope_parameters", v5));
  const ModelConfig b = read_model(with_key(with_key(llama_json(), "rope_scaling", v4), "rope_theta", 5e5));
  EXPECT_EQ(model_text(a), model_text(b));
  EXPECT_EQ(a.rope_theta, 5e5);
  EXPECT_EQ(a.rope_scaling.rope_type, RopeType::linear);
  const json plain = {{"rope_type", "default"}, {"rope_theta", 1e4}};
  EXPECT_EQ(read_model(with_key(llama_json(), "rope_parameters", plain)).rope_scaling.rope_type, RopeType::none);
  EXPECT_EQ(read_model(with_key(llama_json(), "rope_scaling", nullptr)).rope_scaling.rope_type, RopeType::none);
  json both = with_key(with_key(llama_json(), "rope_parameters", v5), "rope_scaling", v4);
  EXPECT_EQ(read_model(both).rope_scaling.factor, 2.0);
  both["rope_scaling"]["factor"] = 3.0;
  model_refused(both, {"rope_parameters", "the same as rope_scaling"});
  model_refused(with_key(with_key(llama_json(), "rope_parameters", v5), "rope_theta", 1e4), {"rope_theta", "the same"});
  model_refused(with_key(llama_json(), "rope_scaling", {{"rope_type", "dynamic"}}),
                {"rope_scaling.rope_type", "none, linear, llama3, yarn"});
  model_refused(with_key(llama_json(), "rope_scaling", {{"rope_type", "llama3"}, {"factor", 8.0}}),
                {"original_max_position_embeddings"});
}

TEST(ModelConfig, YarnRoundTrips) {
  const json yarn = json::parse(R"({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64,
      "beta_fast": null, "attention_factor": null})");
  const ModelConfig m = read_model(with_key(llama_json(), "rope_scaling", yarn));
  EXPECT_EQ(m.rope_scaling.rope_type, RopeType::yarn);
  EXPECT_EQ(m.rope_scaling.beta_fast, 32);
  EXPECT_NEAR(attention_factor(m.rope_scaling), 1.1386294361, 1e-9);
  json full = yarn;
  full.update({{"beta_fast", 20}, {"beta_slow", 2}, {"attention_factor", 1.5}, {"mscale", 1.0}});
  full.update({{"mscale_all_dim", 0.5}, {"truncate", false}});
  const ModelConfig all = read_model(with_key(llama_json(), "rope_scaling", full));
  EXPECT_EQ(attention_factor(all.rope_scaling), 1.5);
  for (const ModelConfig& each : {m, all})
    EXPECT_EQ(model_text(parse_model_config(hf_config_json(each, "float32"), "exported")), model_text(each));
  json bad = yarn;
  bad.erase("original_max_position_embeddings");
  model_refused(with_key(llama_json(), "rope_scaling", bad), {"original_max_position_embeddings", "yarn"});
  bad = full;
  bad["beta_slow"] = 21;
  model_refused(with_key(llama_json(), "rope_scaling", bad), {"beta_fast", "beta_slow 21"});
}

// Files as published on the hub: dropout and lists of end tokens are noted and not refused.
TEST(ModelConfig, PublishedConfigsAreRead) {
  const std::string folder = ::testing::TempDir() + "athanor_published_config.json";
  const auto load = [&](const std::string& text, size_t remarks) {
    std::ofstream(folder) << text;
    std::vector<std::string> notices;
    const ModelConfig m = load_model_config(folder, &notices);
    EXPECT_EQ(notices.size(), remarks);
    return m;
  };
  const ModelConfig llama = load(R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false,
    "attention_dropout": 0.0, "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009], "hidden_act": "silu",
    "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 131072,
    "mlp_bias": false, "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 8.0,
    "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"},
    "rope_theta": 500000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.42.3",
    "use_cache": true, "vocab_size": 128256})",
                                 1);
  EXPECT_EQ(llama.eos_token_id, 128001);
  EXPECT_EQ(parameter_count(llama), 8030261248);
  const ModelConfig qwen = load(R"({"architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0,
    "bos_token_id": 151643, "eos_token_id": 151643, "hidden_act": "silu", "hidden_size": 896,
    "initializer_range": 0.02, "intermediate_size": 4864, "max_position_embeddings": 32768, "max_window_layers": 24,
    "model_type": "qwen2", "num_attention_heads": 14, "num_hidden_layers": 24, "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": true,
    "torch_dtype": "bfloat16", "transformers_version": "4.40.1", "use_cache": true, "use_mrope": false,
    "use_sliding_window": false, "vocab_size": 151936})",
                                0);
  EXPECT_EQ(qwen.sliding_window, 0);
  EXPECT_EQ(parameter_count(qwen), 494032768);
  const ModelConfig gpt2 = load(R"({"activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"],
    "attn_pdrop": 0.1, "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12,
    "n_positions": 1024, "resid_pdrop": 0.1, "vocab_size": 50257})",
                                3);
  EXPECT_EQ(parameter_count(gpt2), 124439808);
  std::remove(folder.c_str());
}

// A config.json as published by another program.
struct Published {
  ModelConfig model;
  std::vector<std::string> notices;
};
Published read_published(const json& j) {
  const std::string path = ::testing::TempDir() + "athanor_default_config.json";
  std::ofstream(path) << j.dump();
  Published p;
  try {
    p.model = load_model_config(path, &p.notices);
  } catch (...) {
    std::remove(path.c_str());
    throw;
  }
  std::remove(path.c_str());
  return p;
}

// Each key of each family alone is left out: the value is that of the family's class in transformers.
TEST(ModelConfig, DefaultsMatchTransformersConfigClasses) {
  const json llama = json::parse(R"({"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008,
      "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 128,
      "max_position_embeddings": 2048, "norm_eps": 1e-6, "rope_theta": 1e4, "initializer_range": 0.02,
      "tie_word_embeddings": false, "bos_token_id": 1, "eos_token_id": 2, "sliding_window": 0,
      "attention_bias": false})");
  json mistral = llama, qwen2 = llama;
  mistral.update(json::parse(R"({"intermediate_size": 14336, "num_key_value_heads": 8,
      "max_position_embeddings": 131072, "sliding_window": 4096})"));
  qwen2.update(json::parse(R"({"vocab_size": 151936, "intermediate_size": 22016, "max_position_embeddings": 32768,
      "bos_token_id": null, "eos_token_id": null, "attention_bias": true})"));
  json qwen3 = with_key(qwen2, "attention_bias", false);
  const json gpt2 = json::parse(R"({"vocab_size": 50257, "hidden_size": 768, "intermediate_size": 3072,
      "num_hidden_layers": 12, "num_attention_heads": 12, "num_key_value_heads": 12, "head_dim": 64,
      "max_position_embeddings": 1024, "norm_eps": 1e-5, "initializer_range": 0.02, "tie_word_embeddings": true,
      "bos_token_id": 50256, "eos_token_id": 50256, "sliding_window": 0, "attention_bias": true})");
  json mixtral = with_key(mistral, "sliding_window", 0), qwen2_moe = qwen2, qwen3_moe = qwen3, olmoe = llama;
  mixtral.update(json::parse(R"({"norm_eps": 1e-5, "rope_theta": 1e6, "num_experts": 8, "num_experts_per_tok": 2,
      "router_aux_loss_coef": 0.001})"));
  qwen2_moe.update(json::parse(R"({"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24,
      "num_attention_heads": 16, "num_key_value_heads": 16, "num_experts": 60, "num_experts_per_tok": 4,
      "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632, "norm_topk_prob": false,
      "router_aux_loss_coef": 0.001, "decoder_sparse_step": 1, "mlp_only_layers": []})"));
  qwen3_moe.update(json::parse(R"({"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 24,
      "num_key_value_heads": 4, "head_dim": 64, "num_experts": 128, "num_experts_per_tok": 8,
      "moe_intermediate_size": 768, "norm_topk_prob": false, "router_aux_loss_coef": 0.001})"));
  olmoe.update(json::parse(R"({"vocab_size": 50304, "hidden_size": 2048, "intermediate_size": 2048,
      "num_hidden_layers": 16, "num_attention_heads": 16, "num_key_value_heads": 16, "max_position_embeddings": 4096,
      "norm_eps": 1e-5, "bos_token_id": null, "eos_token_id": 50279, "num_experts": 64, "num_experts_per_tok": 8,
      "norm_topk_prob": false, "router_aux_loss_coef": 0.01})"));
  for (const auto& [family, values] : {std::pair{"llama", llama},
                                       {"mistral", mistral},
                                       {"qwen2", qwen2},
                                       {"qwen3", qwen3},
                                       {"gpt2", gpt2},
                                       {"mixtral", mixtral},
                                       {"qwen2_moe", qwen2_moe},
                                       {"qwen3_moe", qwen3_moe},
                                       {"olmoe", olmoe}}) {
    const json whole = with_key(values, "model_type", family);
    const std::string want = model_text(parse_model_config(whole.dump(), "whole"));
    EXPECT_EQ(model_text(read_published(whole).model), want) << family;
    EXPECT_EQ(model_text(read_published({{"model_type", family}}).model), want) << family;
    for (const auto& [key, value] : values.items()) {
      json without = whole;
      without.erase(key);
      EXPECT_EQ(model_text(read_published(without).model), want) << family << " without " << key;
    }
  }
  // Qwen3's head_dim does not follow from the other sizes; a smaller vocabulary has no token 50256.
  EXPECT_EQ(read_published({{"model_type", "qwen3"}, {"hidden_size", 64}}).model.head_dim, 128);
  const Published small = read_published({{"model_type", "gpt2"}, {"vocab_size", 99}});
  EXPECT_EQ(small.model.eos_token_id, -1);
  ASSERT_EQ(small.notices.size(), 1u);
  expect_parts(small.notices[0], {"transformers' gpt2", "hidden_size 768, num_hidden_layers 12"});
}

TEST(ModelConfig, QwenWindowsRequireUseSlidingWindow) {
  for (const char* family : {"qwen2", "qwen3"}) {
    json j = with_key(with_key(llama_json(), "model_type", family), "sliding_window", 8);
    j.update({{"rms_norm_eps", 1e-6}, {"head_dim", 16}});
    const Published silent = read_published(j);
    EXPECT_EQ(silent.model.sliding_window, 0) << family;
    ASSERT_EQ(silent.notices.size(), 1u) << family;
    expect_parts(silent.notices[0], {"sliding_window 8 is not used", "use_sliding_window"});
    EXPECT_EQ(read_published(with_key(j, "use_sliding_window", nullptr)).model.sliding_window, 0);
    j["use_sliding_window"] = true;
    // max_window_layers is 28 by default, and these two layers are below: none has the window.
    EXPECT_EQ(read_published(j).model.sliding_window, 0);
    EXPECT_EQ(read_published(with_key(j, "max_window_layers", 0)).model.sliding_window, 8);
    EXPECT_EQ(
        read_published(with_key(j, "layer_types", {"sliding_attention", "sliding_attention"})).model.sliding_window, 8);
    EXPECT_EQ(read_published(with_key(j, "layer_types", {"full_attention", "full_attention"})).model.sliding_window, 0);
    expect_parts(error_of([&] { read_published(with_key(j, "max_window_layers", 1)); }), {"max_window_layers 0"});
    json without = with_key(j, "max_window_layers", 0);
    without.erase("sliding_window");
    EXPECT_EQ(read_published(without).model.sliding_window, 4096);
  }
  // In a configuration of ours the option means what it says.
  EXPECT_EQ(read_model(with_key(with_key(llama_json(), "model_type", "qwen2"), "sliding_window", 8)).sliding_window, 8);
}

TEST(ModelConfig, PublishedRopeScalingRequiresItsKeys) {
  json j = with_key(llama_json(), "rms_norm_eps", 1e-6);
  j["rope_scaling"] = {{"type", "yarn"}, {"factor", 4.0}};
  EXPECT_EQ(read_published(j).model.rope_scaling.original_max_position_embeddings, 256);
  j["rope_scaling"] = {{"rope_type", "linear"}};
  expect_parts(error_of([&] { read_published(j); }), {"rope_scaling.factor is required"});
  j["rope_scaling"] = {{"rope_type", "llama3"}, {"factor", 8.0}, {"low_freq_factor", 1.0}};
  expect_parts(error_of([&] { read_published(j); }), {"rope_scaling.high_freq_factor is required"});
}

TEST(ModelConfig, IrrelevantKeysAreSkippedWithOneNote) {
  json j = llama_json();
  j.update({{"rms_norm_eps", 1e-6}, {"bos_token_id", 1}, {"eos_token_id", 2}});
  const std::string want = model_text(read_published(j).model);
  j.update(json::parse(R"({"is_llama_config": true, "rope_interleaved": false, "unsloth_fixed": true,
      "do_sample": true, "temperature": 0.6, "top_p": 0.9, "max_length": 4096, "tokenizer_class": "LlamaTokenizer",
      "transformers.js_config": {"dtype": "q4"}})"));
  const Published p = read_published(j);
  EXPECT_EQ(model_text(p.model), want);
  ASSERT_EQ(p.notices.size(), 1u);
  expect_parts(p.notices[0],
               {"is_llama_config", "unsloth_fixed", "do_sample", "temperature", "transformers.js_config"});
  for (const auto& [key, value] : std::vector<std::pair<const char*, json>>{{"rope_interleaved", true},
                                                                            {"auto_map", {{"AutoModel", "m.X"}}},
                                                                            {"quantization", {{"bits", 4}}},
                                                                            {"pruned_heads", {{"0", {1}}}},
                                                                            {"residual_multiplier", 0.22}})
    expect_parts(error_of([&] { read_published(with_key(j, key, value)); }), {key});
}

TEST(ModelConfig, ImpossibleSizesAreRefused) {
  model_refused(with_key(llama_json(), "num_attention_heads", 5), {"head_dim", "64", "5"});
  model_refused(with_key(llama_json(), "num_key_value_heads", 3), {"num_key_value_heads", "4", "3"});
  model_refused(with_key(llama_json(), "head_dim", 15), {"head_dim", "even", "15"});
  model_refused(with_key(llama_json(), "hidden_size", int64_t(1) << 40), {"hidden_size", "1 ... 1048576"});
  model_refused(with_key(llama_json(), "bos_token_id", 1000), {"bos_token_id", "vocab_size 1000"});
  json no_ffn = llama_json();
  no_ffn.erase("intermediate_size");
  model_refused(no_ffn, {"intermediate_size", "required for llama"});
  json huge = llama_json();
  huge["vocab_size"] = 2147483647;
  huge["hidden_size"] = 1048576;
  huge["num_hidden_layers"] = 65536;
  huge["intermediate_size"] = 16777216;
  huge["head_dim"] = 8192;
  model_refused(huge, {"parameters", "limit"});
  json gpt2 = with_key(llama_json(), "model_type", "gpt2");
  model_refused(gpt2, {"num_key_value_heads", "gpt2"});
  gpt2["num_key_value_heads"] = 4;
  model_refused(with_key(gpt2, "rope_theta", 5.0), {"rope_theta", "no rotary"});
  model_refused(with_key(gpt2, "head_dim", 32), {"head_dim", "gpt2"});
}

// Values of GGUF files, which have no ranges of options.
TEST(ModelConfig, EachNumberOutOfRangeIsNamed) {
  const auto error = [](double ModelConfig::*number, double value) {
    ModelConfig m = read_model(llama_json());
    m.*number = value;
    return error_of([&] { validate(m, "x"); });
  };
  EXPECT_EQ(error(&ModelConfig::norm_eps, 0), "x.norm_eps: expected more than 0, got 0");
  EXPECT_EQ(error(&ModelConfig::rope_theta, 1), "x.rope_theta: expected more than 1, got 1");
  EXPECT_EQ(error(&ModelConfig::initializer_range, -1), "x.initializer_range: expected more than 0, got -1");
}

TEST(ModelConfig, ParameterCountMatchesHandComputation) {
  // Embedding and head 2*1000*64; per block: 2 norms, q 64*64, k and v 64*32 each, o 64*64, 3 of 64*128; last norm 64.
  const int64_t block = 2 * 64 + 64 * 64 + 2 * 64 * 32 + 64 * 64 + 3 * 64 * 128;
  EXPECT_EQ(parameter_count(read_model(llama_json())), 2 * 1000 * 64 + 2 * block + 64);
  EXPECT_EQ(parameter_count(read_model(with_key(llama_json(), "tie_word_embeddings", true))),
            1000 * 64 + 2 * block + 64);
  EXPECT_EQ(parameter_count(read_model(with_key(llama_json(), "model_type", "qwen3"))),
            2 * 1000 * 64 + 2 * (block + 2 * 16) + 64);
  EXPECT_EQ(parameter_count(read_model(with_key(llama_json(), "model_type", "qwen2"))),
            2 * 1000 * 64 + 2 * (block + 64 + 32 + 32) + 64);
}

json experts_json(const char* family) {
  json j = with_key(with_key(llama_json(), "model_type", family), "num_experts_per_tok", 2);
  j["num_local_experts"] = 6;
  if (family == std::string("olmoe")) j["num_key_value_heads"] = 4;
  if (family != std::string("qwen3_moe")) return j;
  j["moe_intermediate_size"] = 48;
  j["norm_topk_prob"] = true;
  return j;
}

TEST(ModelConfig, CountsTotalAndActiveExpertParameters) {
  const int64_t rest = 2 * 64 + 64 * 64 + 2 * 64 * 32 + 64 * 64 + 2 * 16;
  const ModelConfig m = read_model(experts_json("qwen3_moe"));
  for (const auto& [experts, count] : {std::pair{6, parameter_count(m)}, {2, active_parameter_count(m)}})
    EXPECT_EQ(count, 2 * 1000 * 64 + 2 * (rest + 6 * 64 + experts * 3 * 64 * 48) + 64);
  EXPECT_EQ(active_parameter_count(read_model(llama_json())), parameter_count(read_model(llama_json())));
}

TEST(ModelConfig, TotalNumberOfExpertsIsBounded) {
  json many = with_key(with_key(experts_json("mixtral"), "num_hidden_layers", 1 << 16), "num_local_experts", 4096);
  model_refused(many, {"num_experts", "4096 in each of 65536 layers", "at most 262144"});
  many["num_local_experts"] = 4;
  EXPECT_EQ(read_model(many).num_experts, 4);
}

TEST(ModelConfig, ReadsTheExpertKeysOfEachFamily) {
  EXPECT_TRUE(read_model(experts_json("mixtral")).norm_topk_prob);
  EXPECT_FALSE(read_model(experts_json("olmoe")).norm_topk_prob);
  EXPECT_EQ(read_model(experts_json("mixtral")).moe_intermediate_size, 128);
  EXPECT_EQ(read_model(with_key(experts_json("qwen3_moe"), "intermediate_size", nullptr)).moe_intermediate_size, 48);
  EXPECT_EQ(read_model(experts_json("olmoe")).router_aux_loss_coef, 0.01);
  for (auto family : {"mixtral", "qwen3_moe", "olmoe"}) {
    json none = experts_json(family);
    none.erase("num_local_experts");
    model_refused(none, {"num_experts", "required", family});
    model_refused(with_key(experts_json(family), "num_experts_per_tok", 7), {"num_experts_per_tok", "6, got 7"});
  }
  model_refused(with_key(experts_json("mixtral"), "norm_topk_prob", false), {"norm_topk_prob", "mixtral"});
  model_refused(with_key(experts_json("olmoe"), "moe_intermediate_size", 4), {"moe_intermediate_size", "128"});
  model_refused(with_key(experts_json("olmoe"), "num_key_value_heads", 2), {"num_key_value_heads", "olmoe"});
  model_refused(with_key(experts_json("olmoe"), "head_dim", 8), {"head_dim", "olmoe", "got 8"});
  model_refused(with_key(llama_json(), "num_experts_per_tok", 2), {"num_experts_per_tok", "llama"});
}

TEST(ModelConfig, ExportedConfigRoundTrips) {
  for (auto family : {"gpt2", "llama", "qwen2", "qwen3", "mistral", "mixtral", "qwen3_moe", "olmoe"}) {
    json j = with_key(llama_json(), "model_type", family);
    for (auto with_experts : {"mixtral", "qwen3_moe", "olmoe"})
      if (family == std::string(with_experts)) j = experts_json(family);
    j["bos_token_id"] = 1;
    if (family == std::string("mistral")) j["final_logit_softcapping"] = 30;
    if (family == std::string("gpt2")) j["num_key_value_heads"] = 4;
    if (family == std::string("qwen2") || family == std::string("mistral")) j["sliding_window"] = 32;
    if (family == std::string("llama")) {
      j["rope_theta"] = 5e5;
      j["rope_scaling"] = {{"rope_type", "llama3"}, {"factor", 8.0}, {"original_max_position_embeddings", 64}};
    }
    const ModelConfig m = read_model(j);
    const std::string text = hf_config_json(m, "bfloat16");
    EXPECT_EQ(model_text(parse_model_config(text, "exported")), model_text(m)) << text;
    const json hf = json::parse(text);
    EXPECT_EQ(hf["torch_dtype"], "bfloat16");
    EXPECT_EQ(hf["dtype"], "bfloat16");
    EXPECT_TRUE(hf["tie_word_embeddings"].is_boolean());
    EXPECT_TRUE(hf["eos_token_id"].is_null());
    const bool gpt2 = m.model_type == ModelType::gpt2;
    EXPECT_TRUE(hf[gpt2 ? "layer_norm_epsilon" : "rms_norm_eps"].is_number_float()) << text;
    EXPECT_EQ(hf.value("final_logit_softcapping", 0.0), m.final_logit_softcapping);
    if (gpt2) continue;
    EXPECT_EQ(hf["rope_theta"], hf["rope_parameters"]["rope_theta"]);
    EXPECT_TRUE(hf["rope_theta"].is_number_float()) << text;
    const bool scaled = m.rope_scaling.rope_type != RopeType::none;
    EXPECT_EQ(hf["rope_scaling"].is_object(), scaled) << text;
    EXPECT_EQ(hf["rope_parameters"]["rope_type"], scaled ? "llama3" : "default") << text;
  }
  EXPECT_EQ(json::parse(hf_config_json(read_model(llama_json()), "float32"))["architectures"][0], "LlamaForCausalLM");
}

TEST(ModelConfig, Gpt2NamesInOtherFamiliesAreNoted) {
  std::vector<std::string> notices;
  json j = llama_json();
  j.erase("num_hidden_layers");
  j["n_layer"] = 2;
  parse(small_config("", j.dump()), {}, &notices);
  ASSERT_EQ(notices.size(), 1u);
  expect_parts(notices[0], {"model.n_layer", "num_hidden_layers"});
  notices.clear();
  parse(small_config(), {}, &notices);
  EXPECT_TRUE(notices.empty());
}

}  // namespace
}  // namespace athanor
