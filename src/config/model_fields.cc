// The options of a model shape, one row each, and the reader that also accepts what Hugging Face's config.json files
// hold besides: keys without meaning here are skipped, keys with one supported value must have it.
#include <algorithm>

#include "base/error.h"
#include "config/fields.h"
#include "config/fields_walk.h"

namespace athanor {
namespace {

using enum OnResume;

constexpr double kMaxTokenId = 2147483647.0;  // 2^31 - 1

// Keys of config.json that do not change the trained function.
constexpr std::string_view kIgnored[] = {"_name_or_path",
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
                                         "_attn_implementation_autoset"};

// Keys that say something this program cannot do unless they have one of these values.
enum class Of : uint8_t { all, gpt2, others };
struct OnlyValues {
  std::string_view key, values, meaning;  // values: JSON, separated by spaces
  Of family = Of::all;
  bool applies_to(ModelType type) const {
    return family == Of::all || (family == Of::gpt2) == (type == ModelType::gpt2);
  }
};
constexpr OnlyValues kOnly[] = {
    {"attn_pdrop", "0", "dropout is not supported"},
    {"embd_pdrop", "0", "dropout is not supported"},
    {"resid_pdrop", "0", "dropout is not supported"},
    {"attention_dropout", "0", "dropout is not supported"},
    {"hidden_dropout", "0", "dropout is not supported"},
    {"num_local_experts", "0 null", "there is no mixture of experts"},
    {"num_experts", "0 null", "there is no mixture of experts"},
    {"n_routed_experts", "0 null", "there is no mixture of experts"},
    {"activation_function", "\"gelu_new\" \"gelu_pytorch_tanh\"", "gpt2 has the tanh form of GELU", Of::gpt2},
    {"hidden_act", "\"gelu_new\" \"gelu_pytorch_tanh\"", "gpt2 has the tanh form of GELU", Of::gpt2},
    {"mlp_bias", "true", "gpt2 has biases in feed-forward layers", Of::gpt2},
    {"activation_function", "\"silu\"", "all families but gpt2 have SwiGLU", Of::others},
    {"hidden_act", "\"silu\"", "all families but gpt2 have SwiGLU", Of::others},
    {"mlp_bias", "false", "feed-forward layers have no bias, but gpt2's", Of::others},
    {"scale_attn_weights", "true", "scores are divided by the root of head_dim"},
    {"scale_attn_by_inverse_layer_idx", "false", "scores are not scaled by layer"},
    {"reorder_and_upcast_attn", "false", "attention has one order of operations"},
    {"add_cross_attention", "false", "there is no cross attention"},
    {"partial_rotary_factor", "1", "RoPE turns whole heads"},
    {"use_mrope", "false", "positions have one dimension"},
};

bool has_value(const Json& value, std::string_view allowed) {
  if (value.is_number())
    return (allowed.starts_with("0") && value.real == 0.0) || (allowed == "1" && value.real == 1.0);
  const std::string text = to_line(value);
  for (size_t from = 0; from < allowed.size();) {
    const size_t end = std::min(allowed.find(' ', from), allowed.size());
    if (allowed.substr(from, end - from) == text) return true;
    from = end + 1;
  }
  return false;
}

// FP8 as `athanor export` writes it; the weights themselves say which are in FP8 (convert/eight_bits.h).
void drop_quantization(Json& object, const std::string& path) {
  const Json* value = object.find("quantization_config");
  if (!value) return;
  const auto says = [value](const char* key, std::string_view text) {
    const Json* at = value->find(key);
    return at && at->is(Json::Kind::string) && at->text == text;
  };
  const bool fp8 =
      says("quant_method", "fp8") || (says("quant_method", "compressed-tensors") && says("format", "float-quantized"));
  if (!value->is(Json::Kind::null) && !fp8)
    bad_value(*value, dotted(path, "quantization_config"),
              "null, \"quant_method\": \"fp8\", or compressed-tensors with \"format\": \"float-quantized\" (other "
              "weights are "
              "plain floats: take the model from which this one was quantized)");
  object.erase("quantization_config");
}

// Takes the keys out of `object` that only Hugging Face needs.
void drop_foreign_keys(Json& object, const std::string& path, ModelType type) {
  for (auto key : kIgnored) object.erase(key);
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

// Instruction-tuned models list all tokens that end an answer; a document ends with the first.
void take_first_id(Json& object, const std::string& key, const std::string& path, Notices notices) {
  const Json* ids = object.find(key);
  if (!ids || !ids->is(Json::Kind::array) || ids->items.empty()) return;
  if (notices)
    notices->push_back(cat(ids->where, ": ", dotted(path, key), ": of ", to_line(*ids), " the first is taken"));
  Json first = ids->items.front();
  object.set(key, std::move(first));
}

// rope_scaling or rope_parameters as a rope_scaling of ours: "type" becomes rope_type, "default" becomes none, and a
// rope_theta inside moves to the model.
Json plain_scaling(Json scaling, Json& model, const std::string& path) {
  if (scaling.is(Json::Kind::null)) return scaling;
  require_object(scaling, path);
  if (const Json* type = scaling.find("type")) {
    const Json* rope_type = scaling.find("rope_type");
    if (rope_type && to_line(*rope_type) != to_line(*type)) bad_value(*type, path + ".type", "the same as rope_type");
    const Json copy = *type;
    scaling.erase("type");
    scaling.set("rope_type", copy);
  }
  if (Json* type = scaling.find("rope_type"); type && type->text == "default") type->text = "none";
  if (const Json* theta = scaling.find("rope_theta")) {
    const Json* outer = model.find("rope_theta");
    if (outer && outer->real != theta->real) bad_value(*theta, path + ".rope_theta", "the same as rope_theta");
    const Json copy = *theta;
    scaling.erase("rope_theta");
    model.set("rope_theta", copy);
  }
  return scaling;
}

// Keys of which part of the meaning depends on others: taken out before the rows are read, judged afterwards.
struct Dependent {
  Json use_sliding_window, max_window_layers, layer_types, n_ctx;
};

Dependent take_dependent(Json& object) {
  Dependent out;
  const auto take = [&object](std::string_view key) {
    const Json* value = object.find(key);
    Json copy = value ? *value : Json();
    object.erase(key);
    return copy;
  };
  out.use_sliding_window = take("use_sliding_window");
  out.max_window_layers = take("max_window_layers");
  out.layer_types = take("layer_types");
  out.n_ctx = take("n_ctx");
  return out;
}

void apply_dependent(const Dependent& keys, const std::string& path, ModelConfig& m) {
  if (!keys.use_sliding_window.is(Json::Kind::null)) {
    const bool used = read_bool(keys.use_sliding_window, path + ".use_sliding_window");
    if (!used) m.sliding_window = 0;
    const Json& from = keys.max_window_layers;
    if (used && !(from.is(Json::Kind::integer) && from.integer == 0)) {
      bad_value(keys.use_sliding_window, path + ".use_sliding_window",
                "max_window_layers 0 beside true (the window is the same in all layers)");
    }
  }
  if (!keys.layer_types.is(Json::Kind::null)) {
    const std::string all = m.sliding_window > 0 ? "sliding_attention" : "full_attention";
    const auto fits = [&all](const Json& type) { return type.is(Json::Kind::string) && type.text == all; };
    const auto& types = keys.layer_types.items;
    if (!keys.layer_types.is(Json::Kind::array) || !std::all_of(types.begin(), types.end(), fits)) {
      bad_value(keys.layer_types, path + ".layer_types", cat("a list of \"", all, "\" alone (all layers are alike)"));
    }
  }
  if (!keys.n_ctx.is(Json::Kind::null)) {
    const double positions = double(m.max_position_embeddings);
    read_integer(keys.n_ctx, path + ".n_ctx", between(positions, positions));
  }
}

void read_scaling(ModelConfig& out, const Json& value, const std::string& path, Notices notices) {
  out.rope_scaling = {};
  if (!value.is(Json::Kind::null)) read_fields(rope_scaling_fields(), value, path, out.rope_scaling, notices);
}
Json write_scaling(const ModelConfig& in) {
  if (in.rope_scaling.rope_type == RopeType::none) return Json();
  return write_fields(rope_scaling_fields(), in.rope_scaling);
}
Json scaling_schema() {
  Json nothing = Json::object(), either = Json::object(), any = Json::array();
  nothing.set("type", Json::of("null"));
  any.items = {schema_of(rope_scaling_fields()), std::move(nothing)};
  either.set("anyOf", std::move(any));
  return either;
}

}  // namespace

std::vector<Field<ModelConfig>> model_fields() {
  using M = ModelConfig;
  return {
      choice<&M::model_type>("model_type", refused, "family of the architecture").required(),
      number("vocab_size", &M::vocab_size, between(1, kMaxTokenId), refused, "", "rows of the token embedding")
          .required(),
      number("hidden_size", &M::hidden_size, between(1, 1 << 20), refused, "", "width of the residual stream")
          .synonym({"n_embd"})
          .required(),
      number("num_hidden_layers", &M::num_hidden_layers, between(1, 1 << 16), refused, "", "transformer blocks")
          .synonym({"n_layer"})
          .required(),
      number("num_attention_heads", &M::num_attention_heads, between(1, 1 << 14), refused, "", "query heads")
          .synonym({"n_head"})
          .required(),
      number("num_key_value_heads", &M::num_key_value_heads, between(1, 1 << 14), refused, "",
             "key and value heads; fewer than query heads = grouped-query attention")
          .or_word("null", 0)
          .unset_is("num_attention_heads"),
      number("head_dim", &M::head_dim, between(1, 1 << 13), refused, "", "width of one head")
          .or_word("null", 0)
          .unset_is("hidden_size / num_attention_heads"),
      number("intermediate_size", &M::intermediate_size, between(1, 1 << 24), refused, "",
             "width of the feed-forward layer")
          .or_word("null", 0)
          .synonym({"n_inner"})
          .unset_is("gpt2: 4 hidden_size; others: required"),
      number("max_position_embeddings", &M::max_position_embeddings, between(1, kMaxTokenId), refused, "tokens",
             "longest sequence")
          .synonym({"n_positions"})
          .required(),
      number("norm_eps", &M::norm_eps, Range{.low = 0, .high = 1, .open_low = true, .open_high = true}, refused, "",
             "added to the mean square in every norm")
          .synonym({"rms_norm_eps", "layer_norm_epsilon"}),
      number("rope_theta", &M::rope_theta, above(1), refused, "", "base of the rotary frequencies"),
      custom("rope_scaling", Custom<M>{read_scaling, write_scaling, scaling_schema, "object or null"}, refused,
             "stretching of rotary embeddings; also accepted as rope_parameters")
          .unset_is("null"),
      number("sliding_window", &M::sliding_window, between(0, kMaxTokenId), refused, "tokens",
             "tokens that a position sees, itself included (mistral, qwen2, qwen3); null or 0 = all before it")
          .or_word("null", 0),
      option("attention_bias", &M::attention_bias, refused, "bias on Q, K and V; each family has one value")
          .unset_is("gpt2, qwen2: true"),
      option("qk_norm", &M::qk_norm, refused, "RMSNorm on each head's Q and K; each family has one value")
          .unset_is("qwen3: true"),
      option("tie_word_embeddings", &M::tie_word_embeddings, refused, "the output head is the token embedding")
          .unset_is("gpt2: true; others: false"),
      number("final_logit_softcapping", &M::final_logit_softcapping, between(0, 1e6), refused, "",
             "logits become this times tanh(logits / this), as in Gemma 2, which has 30; null or 0 = off")
          .or_word("null", 0),
      number("initializer_range", &M::initializer_range, Range{.low = 0, .high = 100, .open_low = true}, refused, "",
             "standard deviation of initial weights"),
      number("bos_token_id", &M::bos_token_id, between(-1, kMaxTokenId), refused, "token",
             "begins a text; null or -1 = none")
          .or_word("null", -1),
      number("eos_token_id", &M::eos_token_id, between(-1, kMaxTokenId), refused, "token",
             "ends a text; null or -1 = none")
          .or_word("null", -1),
  };
}

std::vector<Field<RopeScaling>> rope_scaling_fields() {
  using R = RopeScaling;
  const Range factor{.low = 1, .high = 1e6};
  const Range frequency{.low = 0, .high = 1e6, .open_low = true};
  return {
      choice<&R::rope_type>("rope_type", refused,
                            "linear divides positions by factor; llama3 and yarn only those of low frequencies")
          .required(),
      number("factor", &R::factor, factor, refused, "", "how many times longer the context becomes"),
      number("low_freq_factor", &R::low_freq_factor, frequency, refused, "",
             "llama3: wavelengths above original / this are stretched in full"),
      number("high_freq_factor", &R::high_freq_factor, frequency, refused, "",
             "llama3: wavelengths below original / this are kept"),
      number("original_max_position_embeddings", &R::original_max_position_embeddings, between(0, kMaxTokenId), refused,
             "tokens", "llama3, yarn: context before stretching"),
      number("beta_fast", &R::beta_fast, frequency, refused, "",
             "yarn: frequencies with more turns than this in the original context are kept")
          .or_word("null", 32),
      number("beta_slow", &R::beta_slow, frequency, refused, "",
             "yarn: frequencies with fewer turns than this are stretched in full")
          .or_word("null", 1),
      number("attention_factor", &R::attention_factor, between(0, 1e6), refused, "",
             "yarn: scales cos and sin; null or 0 = 0.1 ln(factor) + 1")
          .or_word("null", 0),
      number("mscale", &R::mscale, between(0, 1e6), refused, "",
             "yarn: with mscale_all_dim, attention_factor is the ratio of 0.1 mscale ln(factor) + 1 of the two")
          .or_word("null", 0),
      number("mscale_all_dim", &R::mscale_all_dim, between(0, 1e6), refused, "", "yarn: see mscale").or_word("null", 0),
      option("truncate", &R::truncate, refused, "yarn: the bounds of the blend are rounded to whole dimensions"),
  };
}

void merge_rope_keys(Json& model, const std::string& path) {
  if (const Json* scaling = model.find("rope_scaling")) {
    const Json copy = *scaling;
    model.set("rope_scaling", plain_scaling(copy, model, path + ".rope_scaling"));
  }
  const Json* parameters = model.find("rope_parameters");
  if (!parameters) return;
  const std::string parameters_path = path + ".rope_parameters";
  const Json mine = plain_scaling(Json(*parameters), model, parameters_path);
  model.erase("rope_parameters");
  RopeScaling now, before;
  if (!mine.is(Json::Kind::null)) read_fields(rope_scaling_fields(), mine, parameters_path, now, nullptr);
  const Json* scaling = model.find("rope_scaling");
  if (scaling && !scaling->is(Json::Kind::null)) {
    read_fields(rope_scaling_fields(), *scaling, path + ".rope_scaling", before, nullptr);
    const auto text = [](const RopeScaling& r) { return to_line(write_fields(rope_scaling_fields(), r)); };
    if (text(now) != text(before)) bad_value(mine, parameters_path, "the same as rope_scaling");
  }
  model.set("rope_scaling", mine);
}

void forget_dropout(Json& model, const std::string& path, Notices notices) {
  for (const auto& only : kOnly) {
    const Json* value = model.is(Json::Kind::object) ? model.find(only.key) : nullptr;
    if (!value || !only.meaning.starts_with("dropout") || !value->is_number() || value->real == 0) continue;
    if (notices)
      notices->push_back(
          cat(value->where, ": ", dotted(path, only.key), " ", to_line(*value), " is left out: there is no dropout"));
    model.erase(only.key);
  }
}

ModelConfig read_model(const Json& object, const std::string& path, Notices notices) {
  require_object(object, path);
  Json own = object;
  ModelConfig m;
  if (const Json* type = own.find("model_type")) {
    m = model_defaults(ModelType(read_choice(*type, dotted(path, "model_type"), choice_names(ModelType{}))));
  }
  drop_foreign_keys(own, path, m.model_type);
  for (auto key : {"bos_token_id", "eos_token_id"}) take_first_id(own, key, path, notices);
  merge_rope_keys(own, path);
  const Dependent dependent = take_dependent(own);
  read_fields(model_fields(), own, path, m, notices);
  apply_dependent(dependent, path, m);
  complete(m);
  validate(m, cat(object.where, ": ", path));
  for (const auto& key : own.keys) {
    if (!key.starts_with("n_") || m.model_type == ModelType::gpt2 || !notices) continue;
    notices->push_back(
        cat(object.where, ": ", path, ".", key, " is a gpt2 name, read as ", find_field(model_fields(), key)->key));
  }
  return m;
}

Json write_model(const ModelConfig& m) { return write_fields(model_fields(), m); }

Json model_schema() {
  Json schema = schema_of(model_fields());
  Json& properties = *schema.find("properties");
  for (auto key : kIgnored) properties.set(std::string(key), Json::object());
  for (const auto& only : kOnly) {
    const Json* other = properties.find(only.key);  // the key's row of other families
    const std::string before = other ? other->find("description")->text + "; " : "";
    Json note = Json::object();
    note.set("description", Json::of(cat(before, "only ", only.values, ": ", only.meaning)));
    properties.set(std::string(only.key), std::move(note));
  }
  for (auto key : {"use_sliding_window", "max_window_layers", "layer_types", "n_ctx", "rope_parameters"}) {
    properties.set(key, Json::object());
  }
  return schema;
}

}  // namespace athanor
