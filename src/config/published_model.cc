// Handles keys of Hugging Face's config.json files that are not part of a model shape, and keys that such files leave
// out: keys without meaning here are skipped, keys with one supported value must have it, and missing keys get the
// defaults of the published configuration classes. A "model" object in a configuration of this program gets this
// program's own defaults instead.
#include <algorithm>

#include "base/error.h"
#include "config/fields.h"
#include "config/fields_walk.h"

namespace athanor {
namespace {

// Keys that transformers writes or once wrote and that do not change the trained function: skipped without a notice.
constexpr std::string_view kWritten[] = {"_name_or_path",
                                         "architectures",
                                         "torch_dtype",
                                         "dtype",
                                         "transformers_version",
                                         "use_cache",
                                         "pad_token_id",
                                         "pretraining_tp",
                                         "task_specific_params",
                                         "is_decoder",
                                         "is_encoder_decoder",
                                         "output_attentions",
                                         "output_hidden_states",
                                         "return_dict",
                                         "chunk_size_feed_forward",
                                         "id2label",
                                         "label2id",
                                         "problem_type",
                                         "summary_type",
                                         "summary_use_proj",
                                         "summary_activation",
                                         "summary_proj_to_labels",
                                         "summary_first_dropout",
                                         "output_past",
                                         "gradient_checkpointing",
                                         "output_router_logits",
                                         "encoder_stride",
                                         "num_nextn_predict_layers",
                                         "num_mtp_layers",
                                         "pooler_output_size",
                                         "pooler_act",
                                         "_attn_implementation_autoset"};

// Keys of published files that only other programs read: skipped with one notice.
constexpr std::string_view kSkipped[] = {
    // settings of text generation, which older versions of transformers store in config.json
    "max_length", "max_new_tokens", "min_length", "min_new_tokens", "do_sample", "early_stopping", "num_beams",
    "num_beam_groups", "diversity_penalty", "temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff",
    "eta_cutoff", "repetition_penalty", "encoder_repetition_penalty", "length_penalty", "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences", "output_scores", "output_logits",
    "return_dict_in_generate", "forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values",
    "exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens", "cache_implementation",
    "generation_config", "penalty_alpha", "renormalize_logits", "num_assistant_tokens", "num_assistant_tokens_schedule",
    "assistant_confidence_threshold", "assistant_lookbehind", "target_lookbehind",
    // keys of tokenizers, classifiers and unsupported kinds of models
    "tokenizer_class", "tokenizer_model_max_length", "tokenizer_padding_side", "model_max_length",
    "max_sequence_length", "vocab_file", "prefix", "unk_token_id", "sep_token_id", "cls_token_id", "mask_token_id",
    "decoder_start_token_id", "num_labels", "finetuning_task", "classifier_dropout", "tie_encoder_decoder",
    "cross_attention_hidden_size", "keys_to_ignore_at_inference", "n_special", "predict_special_tokens",
    // settings of other programs' computations, and the name of the program that wrote the file
    "torchscript", "use_bfloat16", "tf_legacy_loss", "xla_device", "_commit_hash", "name_or_path", "model_name",
    "attn_implementation", "_attn_implementation", "_flash_attn_2_enabled", "use_flash_attention_2", "use_flash_attn",
    "is_llama_config", "unsloth_fixed", "unsloth_version", "neftune_noise_alpha", "gradient_checkpointing_kwargs",
    "transformers.js_config",
    // how DeepSeek's models were trained and are served
    "aux_loss_alpha", "seq_aux", "ep_size",
    // copies of other keys in OpenAI's files
    "experts_per_token", "initial_context_length"};

// Keys that ask for something this program cannot do unless they have one of these values.
enum class Of : uint8_t { all, gpt2, others };
struct OnlyValues {
  std::string_view key, values, meaning;  // values: JSON, separated by spaces
  Of family = Of::all;
  bool applies_to(ModelType type) const {
    if (family == Of::others && (type == ModelType::athanor || type == ModelType::vit))
      return false;  // these keys are options of athanor, and of vit, whose values validate() checks
    return family == Of::all || (family == Of::gpt2) == (type == ModelType::gpt2);
  }
};
constexpr OnlyValues kOnly[] = {
    {"attn_pdrop", "0", "dropout is not supported"},
    {"embd_pdrop", "0", "dropout is not supported"},
    {"resid_pdrop", "0", "dropout is not supported"},
    {"attention_dropout", "0", "dropout is not supported"},
    {"hidden_dropout", "0", "dropout is not supported"},
    {"hidden_dropout_prob", "0", "dropout is not supported"},
    {"attention_probs_dropout_prob", "0", "dropout is not supported"},
    {"qkv_bias", "true", "vit has biases in all layers, qwen2_moe of Q, K and V"},
    {"moe_layer_freq", "1", "all layers have experts, but the first_k_dense_replace first ones"},
    {"topk_method", "\"noaux_tc\"", "experts are chosen by their scores plus a bias that is not trained by gradients"},
    {"router_jitter_noise", "0", "the router adds no noise"},
    {"clip_qkv", "null", "queries, keys and values are not clipped"},
    {"activation_function", "\"gelu_new\" \"gelu_pytorch_tanh\"", "gpt2 has the tanh form of GELU", Of::gpt2},
    {"hidden_act", "\"gelu_new\" \"gelu_pytorch_tanh\"", "gpt2 has the tanh form of GELU", Of::gpt2},
    {"mlp_bias", "true", "gpt2 has biases in feed-forward layers", Of::gpt2},
    {"activation_function", "\"silu\"", "all families but gpt2, vit and athanor have SwiGLU", Of::others},
    {"hidden_act", "\"silu\"", "all families but gpt2, vit and athanor have SwiGLU", Of::others},
    {"mlp_bias", "false", "feed-forward layers have no bias, but those of gpt2, vit and athanor", Of::others},
    {"swiglu_alpha", "1.702", "gpt_oss has this factor in its sigmoid"},
    {"scale_attn_weights", "true", "scores are divided by the root of head_dim"},
    {"scale_attn_by_inverse_layer_idx", "false", "scores are not scaled by layer"},
    {"reorder_and_upcast_attn", "false", "attention has one order of operations"},
    {"add_cross_attention", "false", "there is no cross attention"},
    {"partial_rotary_factor", "1", "RoPE rotates whole heads"},
    {"use_mrope", "false", "positions have one dimension"},
    {"rope_interleaved", "false", "RoPE rotates pairs of one element from each half of a head"},
    {"auto_map", "null {}", "code next to the weights is not run"},
    {"quantization", "null {}", "weights are plain floats or FP8"},
    {"pruned_heads", "null {}", "all layers have all heads"},
    {"is_causal", "true", "attention is causal"},
};

bool has_value(const Json& value, std::string_view allowed) {
  if (value.is_number())
    return (allowed.starts_with("0") && value.real == 0.0) || (allowed == "1" && value.real == 1.0) ||
           to_line(value) == allowed;
  const std::string text = to_line(value);
  for (size_t from = 0; from < allowed.size();) {
    const size_t end = std::min(allowed.find(' ', from), allowed.size());
    if (allowed.substr(from, end - from) == text) return true;
    from = end + 1;
  }
  return false;
}

// Accepts FP8, packed integers and NF4 as written by `athanor export`; the weight tensors themselves say how they are
// stored (convert/low_precision.h, convert/int_weights.h, convert/nf4_file.h).
void drop_quantization(Json& object, const std::string& path) {
  const Json* value = object.find("quantization_config");
  if (!value) return;
  const auto says = [value](const char* key, std::string_view text) {
    const Json* at = value->find(key);
    return at && at->is(Json::Kind::string) && at->text == text;
  };
  const bool known =
      says("quant_method", "fp8") || says("quant_method", "mxfp4") ||
      (says("quant_method", "bitsandbytes") && says("bnb_4bit_quant_type", "nf4")) ||
      (says("quant_method", "compressed-tensors") &&
       (says("format", "float-quantized") || says("format", "pack-quantized"))) ||
      (says("quant_method", "gptq") && (says("checkpoint_format", "gptq") || !value->find("checkpoint_format")));
  if (!value->is(Json::Kind::null) && !known)
    bad_value(*value, dotted(path, "quantization_config"),
              "null, \"quant_method\": \"fp8\" or \"mxfp4\", bitsandbytes with \"bnb_4bit_quant_type\": \"nf4\", "
              "\"gptq\" with \"checkpoint_format\": \"gptq\", or compressed-tensors "
              "with \"format\": \"float-quantized\" or \"pack-quantized\" (other weights are plain floats: take the "
              "model from which this one was quantized)");
  object.erase("quantization_config");
}

using enum ModelType;
// Defaults of each family's published configuration class where they differ from this program's own defaults, as JSON
// [transformers 4 and 5, configuration_*.py].
constexpr std::pair<ModelType, std::string_view> kDefaults[] = {
    {gpt2, R"({"vocab_size": 50257, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
        "max_position_embeddings": 1024, "bos_token_id": 50256, "eos_token_id": 50256})"},
    {llama, R"({"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "max_position_embeddings": 2048, "norm_eps": 1e-06, "bos_token_id": 1,
        "eos_token_id": 2})"},
    {mistral, R"({"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072, "norm_eps": 1e-06,
        "bos_token_id": 1, "eos_token_id": 2, "sliding_window": 4096})"},
    {qwen2, R"({"vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 32768, "norm_eps": 1e-06})"},
    {qwen3, R"({"vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 128, "max_position_embeddings": 32768,
        "norm_eps": 1e-06})"},
    {mixtral, R"({"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072,
        "rope_theta": 1000000.0, "bos_token_id": 1, "eos_token_id": 2, "num_experts": 8, "num_experts_per_tok": 2})"},
    {qwen2_moe, R"({"vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24,
        "num_attention_heads": 16, "num_key_value_heads": 16, "max_position_embeddings": 32768, "norm_eps": 1e-06,
        "num_experts": 60, "num_experts_per_tok": 4, "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632})"},
    {qwen3_moe, R"({"vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 24,
        "num_attention_heads": 32, "num_key_value_heads": 4, "max_position_embeddings": 32768, "norm_eps": 1e-06,
        "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768})"},
    {olmoe, R"({"vocab_size": 50304, "hidden_size": 2048, "intermediate_size": 2048, "num_hidden_layers": 16,
        "num_attention_heads": 16, "max_position_embeddings": 4096, "eos_token_id": 50279, "num_experts": 64,
        "num_experts_per_tok": 8})"},
    {dots1, R"({"vocab_size": 152064, "hidden_size": 4608, "intermediate_size": 10944, "moe_intermediate_size": 1408,
        "num_hidden_layers": 62, "num_attention_heads": 32, "num_key_value_heads": 32,
        "max_position_embeddings": 2048, "norm_eps": 1e-06})"},
    {deepseek_v2, R"({"vocab_size": 102400, "hidden_size": 4096, "intermediate_size": 11008,
        "moe_intermediate_size": 1407, "num_hidden_layers": 32, "num_attention_heads": 32,
        "max_position_embeddings": 2048, "norm_eps": 1e-06, "bos_token_id": 1, "eos_token_id": 2, "num_experts": 64,
        "n_shared_experts": 2, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128})"},
    {deepseek_v3, R"({"vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432,
        "moe_intermediate_size": 2048, "num_hidden_layers": 61, "num_attention_heads": 128,
        "max_position_embeddings": 4096, "norm_eps": 1e-06, "bos_token_id": 0, "eos_token_id": 1, "num_experts": 256,
        "num_experts_per_tok": 8, "n_shared_experts": 1, "routed_scaling_factor": 2.5, "n_group": 8, "topk_group": 4,
        "first_k_dense_replace": 3, "norm_topk_prob": true, "q_lora_rank": 1536, "kv_lora_rank": 512,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128})"},
    {gpt_oss, R"({"vocab_size": 201088, "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 36,
        "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "max_position_embeddings": 131072,
        "rope_theta": 150000.0, "num_experts": 128, "num_experts_per_tok": 4, "sliding_window": 128})"},
    {vit, R"({"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
        "norm_eps": 1e-12, "image_size": 224, "patch_size": 16})"},
};
constexpr int64_t kWindowOfQwen = 4096, kFirstLayerWithWindow = 28;  // defaults if the switch is true

// True if the object contains the option `key` under any of its names.
bool gives(const Json& model, const std::vector<Field<ModelConfig>>& fields, std::string_view key) {
  const Field<ModelConfig>* option = find_field(fields, key);
  return std::ranges::any_of(model.keys, [&](const std::string& k) { return find_field(fields, k) == option; });
}

// Published files of qwen2, qwen3, qwen2_moe and qwen3_moe give a window that is used only if their switch is on.
// Versions of the classes of qwen2_moe and qwen3_moe differ in which layers have it, so such a file must list them.
void default_window(Json& model, const std::string& path, ModelType family, Notices notices) {
  const Json* window = model.find("sliding_window");
  const Json* on = model.find("use_sliding_window");
  const bool silent = !on || on->is(Json::Kind::null);
  if (silent && notices && window && window->is_number() && window->real > 0)
    notices->push_back(cat(window->where, ": ", dotted(path, "sliding_window"), " ", to_line(*window),
                           " is not used: use_sliding_window is not given, and false by default"));
  if (silent) model.set("use_sliding_window", Json::of(false));
  if (silent || !on->boolean) return;
  if (family == qwen2_moe && !model.find("layer_types"))
    bad_value(*on, dotted(path, "use_sliding_window"),
              "false, or true with layer_types (versions of transformers differ in the layers that have the window)");
  if (!window) model.set("sliding_window", Json::of(kWindowOfQwen));
  if (family != qwen2_moe && family != qwen3_moe && !model.find("max_window_layers"))
    model.set("max_window_layers", Json::of(kFirstLayerWithWindow));
}

// dots1 has no switch: layers from max_window_layers on (62 by default) have the window, unless layer_types gives other
// types. Its published files name the score function after the load-balancing method.
void default_dots1(Json& model) {
  if (!model.find("use_sliding_window")) model.set("use_sliding_window", Json::of(true));
  if (!model.find("sliding_window")) model.set("sliding_window", Json::of(kWindowOfQwen));
  if (!model.find("max_window_layers")) model.set("max_window_layers", Json::of(int64_t{62}));
  Json* score = model.find("scoring_func");
  if (score && score->is(Json::Kind::string) && score->text == "noaux_tc") score->text = "sigmoid";
}

// Files of deepseek_v2 and deepseek_v3 may have two head sizes that follow from others, under head_dim that of RoPE;
// and published ones name code for versions of transformers that did not have the families.
void default_deepseek(Json& model, ModelType family) {
  for (const char* key : {"head_dim", "qk_head_dim", "auto_map"}) model.erase(key);
  if (family == deepseek_v2 && !model.find("topk_method")) model.set("topk_method", Json::of("greedy"));
}

// [transformers 5, modeling_rope_utils.py]: a missing original context is max_position_embeddings; keys whose default
// exists only in this program must be given.
void default_scaling(Json& model, const std::string& path) {
  Json* scaling = model.find("rope_scaling");
  const Json* type = scaling && scaling->is(Json::Kind::object) ? scaling->find("rope_type") : nullptr;
  if (!type || type->text == "none" || type->text == "proportional") return;  // "proportional" exists only in athanor
  const bool is_llama3 = type->text == "llama3";
  const auto require = [&](std::string_view key) {
    if (!scaling->find(key))
      throw Error(
          cat(scaling->where, ": ", path, ".rope_scaling.", key, " is required in a published file for ", type->text),
          Exit::usage);
  };
  require("factor");
  if (is_llama3) require("low_freq_factor"), require("high_freq_factor");
  const Json* longest = model.find("max_position_embeddings");
  if ((is_llama3 || type->text == "yarn") && longest && !scaling->find("original_max_position_embeddings")) {
    const Json copy = *longest;
    scaling->set("original_max_position_embeddings", copy);
  }
}

// Removes dropout, which only affects how the other program trained.
void forget_dropout(Json& model, const std::string& path, Notices notices) {
  for (const auto& only : kOnly) {
    const Json* value = model.find(only.key);
    if (!value || !only.meaning.starts_with("dropout") || !value->is_number() || value->real == 0) continue;
    if (notices)
      notices->push_back(cat(value->where, ": ", dotted(path, only.key), " ", to_line(*value),
                             " is left out: how a model was trained is no part of it"));
    model.erase(only.key);
  }
}

// True if the value is a token id outside the vocabulary, for models with a smaller vocabulary than the published one.
bool is_beyond(const Json& model, std::string_view key, const Json& value) {
  const Json* vocabulary = model.find("vocab_size");
  return key.ends_with("_token_id") && vocabulary && vocabulary->is_number() && value.real >= vocabulary->real;
}

// Removes ids of special tokens that the vocabulary does not have: transformers writes the published ones into files of
// models with a smaller vocabulary.
void forget_ids_beyond(Json& model, const std::string& path, Notices notices) {
  for (const char* key : {"bos_token_id", "eos_token_id"}) {
    const Json* value = model.find(key);
    if (!value || !value->is_number() || !is_beyond(model, key, *value)) continue;
    if (notices)
      notices->push_back(cat(value->where, ": ", dotted(path, key), " ", to_line(*value),
                             " is left out: vocab_size is ", to_line(*model.find("vocab_size"))));
    model.erase(key);
  }
}

}  // namespace

void drop_foreign_keys(Json& object, const std::string& path, ModelType type, Notices notices) {
  for (auto key : kWritten) object.erase(key);
  std::string skipped;
  for (auto key : kSkipped) {
    if (!object.find(key)) continue;
    skipped += cat(skipped.empty() ? "" : ", ", key);
    object.erase(key);
  }
  if (!skipped.empty() && notices)
    notices->push_back(cat(object.where, ": ", path, ": keys that do not describe the weights are ignored: ", skipped));
  drop_quantization(object, path);
  for (const auto& only : kOnly) {
    const Json* value = object.find(only.key);
    if (!value || !only.applies_to(type)) continue;
    if (!has_value(*value, only.values)) {
      bad_value(*value, dotted(path, only.key), cat(only.values, " (", only.meaning, ")"));
    }
    object.erase(only.key);
  }
}

void describe_foreign_keys(Json& properties) {
  for (auto key : kWritten) properties.set(std::string(key), Json::object());
  for (auto key : kSkipped) properties.set(std::string(key), Json::object());
  for (const auto& only : kOnly) {
    const Json* other = properties.find(only.key);  // the same key's row for other families
    const std::string before = other ? other->find("description")->text + "; " : "";
    Json note = Json::object();
    note.set("description", Json::of(cat(before, "only ", only.values, ": ", only.meaning)));
    properties.set(std::string(only.key), std::move(note));
  }
}

void adopt_published(Json& model, const std::string& path, Notices notices) {
  if (!model.is(Json::Kind::object)) return;  // read_model reports the error
  forget_dropout(model, path, notices);
  forget_ids_beyond(model, path, notices);
  const Json* type = model.find("model_type");
  if (!type)  // before its other keys are judged as those of the default family
    throw Error(cat(model.where, ": ", dotted(path, "model_type"), " is required (model family)"), Exit::usage);
  if (type->is(Json::Kind::string) && type->text == "kimi_k2") {  // Kimi K2 is a DeepSeek-V3 of other sizes
    const std::string where = type->where;
    if (notices) notices->push_back(cat(where, ": ", dotted(path, "model_type"), " kimi_k2 is read as deepseek_v3"));
    model.set("model_type", Json::of("deepseek_v3")).where = where;
    type = model.find("model_type");
  }
  const auto family = ModelType(read_choice(*type, dotted(path, "model_type"), choice_names(ModelType{})));
  const auto fields = model_fields();
  merge_rope_keys(model, path);
  std::string filled;
  for (const auto& [of, defaults] : kDefaults) {
    if (of != family) continue;
    const Json object = parse_json(defaults, "published defaults");
    for (size_t i = 0; i < object.keys.size(); ++i) {
      const std::string& key = object.keys[i];
      Json value = object.items[i];
      if (gives(model, fields, key) || is_beyond(model, key, value)) continue;
      filled += cat(filled.empty() ? "" : ", ", key, " ", to_line(value));
      model.set(key, std::move(value)).where = model.where;
    }
  }
  if (!filled.empty() && notices)
    notices->push_back(cat(model.where, ": ", path, ": keys missing from the file have the defaults of transformers' ",
                           name_of(family), ": ", filled));
  if (family == qwen2 || family == qwen3 || family == qwen2_moe || family == qwen3_moe)
    default_window(model, path, family, notices);
  if (family == dots1) default_dots1(model);
  if (family == deepseek_v2 || family == deepseek_v3) default_deepseek(model, family);
  if (family == gpt_oss) default_gpt_oss(model, path, notices);
  default_scaling(model, path);
}

}  // namespace athanor
