// The options of a model shape, one row each, and their reader. Other keys of Hugging Face's config.json files are
// handled in published_model.cc.
#include <algorithm>

#include "base/error.h"
#include "config/fields.h"
#include "config/fields_walk.h"

namespace athanor {
namespace {

using M = ModelConfig;

using enum OnResume;

constexpr double kMaxTokenId = 2147483647.0;  // 2^31 - 1

// Instruction-tuned models list all tokens that end an answer; the first one ends a document.
void take_first_id(Json& object, const std::string& key, const std::string& path, Notices notices) {
  const Json* ids = object.find(key);
  if (!ids || !ids->is(Json::Kind::array) || ids->items.empty()) return;
  if (notices)
    notices->push_back(cat(ids->where, ": ", dotted(path, key), ": the first id of ", to_line(*ids), " is used",
                           key == "eos_token_id" ? "; `sample` stops at all of them" : ""));
  Json first = ids->items.front();
  object.set(key, std::move(first));
}

// Converts rope_scaling or rope_parameters to this program's rope_scaling: "type" becomes rope_type, "default" becomes
// none, and a rope_theta inside moves to the model.
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

// Keys whose meaning depends on other keys: removed before the rows are read, applied afterwards.
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

// The sliding window of qwen2 and qwen3 is given by a switch, the first layer that has it, or a list of all layers,
// which wins.
void apply_window(const Dependent& keys, const std::string& path, ModelConfig& m) {
  const bool has_switch = !keys.use_sliding_window.is(Json::Kind::null);
  const bool has_list = !keys.layer_types.is(Json::Kind::null);
  if (has_switch && !read_bool(keys.use_sliding_window, path + ".use_sliding_window")) m.sliding_window = 0;
  if (has_switch && !has_list && m.sliding_window > 0) {
    const Json& first = keys.max_window_layers;
    const bool counted = first.is(Json::Kind::integer);
    if (counted && first.integer >= m.num_hidden_layers) {
      m.sliding_window = 0;
    } else if (!counted || first.integer != 0) {
      bad_value(keys.use_sliding_window, path + ".use_sliding_window",
                cat("max_window_layers 0 with true, or at least num_hidden_layers ", m.num_hidden_layers,
                    " (the window is the same in all layers)"));
    }
  }
  if (!has_list) return;
  const std::vector<Json>& types = keys.layer_types.items;
  const auto all_are = [&types](std::string_view word) {
    return std::ranges::all_of(types, [word](const Json& t) { return t.is(Json::Kind::string) && t.text == word; });
  };
  const bool list = keys.layer_types.is(Json::Kind::array);
  if (has_switch && list && all_are("full_attention")) m.sliding_window = 0;
  const std::string all = m.sliding_window > 0 ? "sliding_attention" : "full_attention";
  if (!list || !all_are(all))
    bad_value(keys.layer_types, path + ".layer_types", cat("a list of \"", all, "\" alone (all layers are alike)"));
}

void apply_dependent(const Dependent& keys, const std::string& path, ModelConfig& m) {
  apply_window(keys, path, m);
  if (!keys.n_ctx.is(Json::Kind::null)) {
    const double positions = double(m.max_position_embeddings);
    read_integer(keys.n_ctx, path + ".n_ctx", between(positions, positions));
  }
}

void read_layers(ModelConfig& out, const Json& value, const std::string& path, Notices) {
  out.mlp_only_layers = read_integers(value, path, between(0, 1 << 16), "null, or a list of layers, counted from 0");
}
Json write_layers(const ModelConfig& in) { return write_integers(in.mlp_only_layers); }
Json layers_schema() { return list_schema(schema_from(R"({"type": "integer", "minimum": 0})")); }

void read_scaling(ModelConfig& out, const Json& value, const std::string& path, Notices notices) {
  out.rope_scaling = {};
  if (!value.is(Json::Kind::null)) read_fields(rope_scaling_fields(), value, path, out.rope_scaling, notices);
}
Json write_scaling(const ModelConfig& in) {
  if (in.rope_scaling.rope_type == RopeType::none) return Json();
  return write_fields(rope_scaling_fields(), in.rope_scaling);
}
Json scaling_schema() { return null_or(schema_of(rope_scaling_fields())); }

}  // namespace

std::vector<Field<ModelConfig>> model_fields() {
  std::vector<Field<M>> fields = {
      choice<&M::model_type>("model_type", refused, "model family").required(),
      number("vocab_size", &M::vocab_size, between(1, kMaxTokenId), refused, "",
             "rows of the token embedding; vit: number of classes, also num_labels")
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
          .unset_is("hidden_size / num_attention_heads; deepseek_v2, deepseek_v3: qk_nope_head_dim + qk_rope_head_dim"),
      number("intermediate_size", &M::intermediate_size, between(1, 1 << 24), refused, "",
             "width of the feed-forward layer")
          .or_word("null", 0)
          .synonym({"n_inner"})
          .unset_is("gpt2, vit: 4 hidden_size; others: required"),
      number("max_position_embeddings", &M::max_position_embeddings, between(1, kMaxTokenId), refused, "tokens",
             "longest sequence; vit: 1 + patches of an image, by default")
          .synonym({"n_positions"})
          .required(),
      number("norm_eps", &M::norm_eps, Range{.low = 0, .high = 1, .open_low = true, .open_high = true}, refused, "",
             "epsilon added to the mean square in every norm")
          .synonym({"rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps"}),
      number("rope_theta", &M::rope_theta, above(1), refused, "", "base of the RoPE frequencies"),
      custom("rope_scaling", Custom<M>{read_scaling, write_scaling, scaling_schema, "object or null"}, refused,
             "RoPE scaling for longer contexts; also accepted as rope_parameters")
          .unset_is("null"),
      number("sliding_window", &M::sliding_window, between(0, kMaxTokenId), refused, "tokens",
             "sliding-window size, including the token itself (mistral, mixtral, qwen2, qwen3, qwen2_moe, "
             "qwen3_moe, dots1, gpt_oss, athanor); null or 0 = full causal attention")
          .or_word("null", 0),
      option("attention_bias", &M::attention_bias, refused,
             "bias of the Q, K and V projections (athanor, gpt_oss: also of the output projection); fixed by the "
             "family except "
             "athanor")
          .unset_is("gpt2, qwen2, qwen2_moe, gpt_oss, vit: true"),
      option("qk_norm", &M::qk_norm, refused,
             "RMSNorm of Q and K per head (olmoe: over all heads together); fixed by the family except athanor")
          .unset_is("qwen3, qwen3_moe, olmoe, dots1: true"),
      option("tie_word_embeddings", &M::tie_word_embeddings, refused,
             "the output head shares the weights of the token embedding")
          .unset_is("gpt2: true; others: false"),
      number("final_logit_softcapping", &M::final_logit_softcapping, between(0, 1e6), refused, "",
             "softcap of the logits, softcap * tanh(logits / softcap), as in Gemma 2, which uses 30; null or 0 = off")
          .or_word("null", 0),
      number("initializer_range", &M::initializer_range, Range{.low = 0, .high = 100, .open_low = true}, refused, "",
             "standard deviation of initial weights"),
      number("num_experts", &M::num_experts, between(0, 4096), refused, "",
             "mixtral, qwen2_moe, qwen3_moe, olmoe, dots1, deepseek_v2, deepseek_v3, gpt_oss: experts per layer; null "
             "or 0 = no "
             "experts")
          .or_word("null", 0)
          .synonym({"num_local_experts", "n_routed_experts"}),
      number("num_experts_per_tok", &M::num_experts_per_tok, between(0, 4096), refused, "",
             "experts per token, those with the largest router logits (dots1, deepseek_v3: scores plus bias)")
          .or_word("null", 0),
      number("moe_intermediate_size", &M::moe_intermediate_size, between(0, 1 << 24), refused, "",
             "intermediate size of an expert")
          .or_word("null", 0)
          .unset_is("qwen2_moe, qwen3_moe, dots1, deepseek_v2, deepseek_v3: required; mixtral, olmoe, gpt_oss: "
                    "intermediate_size"),
      option("norm_topk_prob", &M::norm_topk_prob, refused,
             "normalize the router weights of a token's chosen experts to sum to 1 (mixtral, gpt_oss: always)")
          .unset_is("mixtral, gpt_oss: true; others: false"),
      choice<&M::scoring_func>(
          "scoring_func", refused,
          "router scores: softmax over all experts, or the sigmoid of each logit; fixed by the family")
          .unset_is("dots1, deepseek_v3: sigmoid; others: softmax"),
      number(
          "n_group", &M::n_group, between(1, 256), refused, "",
          "dots1, deepseek_v2, deepseek_v3: number of equal groups of consecutive experts; each token chooses from the "
          "topk_group groups with the largest sum of their two best scores plus bias (deepseek_v2: the best score); "
          "null = 1")
          .or_word("null", 1),
      number("topk_group", &M::topk_group, between(1, 256), refused, "",
             "dots1, deepseek_v2, deepseek_v3: groups a token may choose from, see n_group; null = 1")
          .or_word("null", 1),
      number("routed_scaling_factor", &M::routed_scaling_factor, Range{.low = 0, .high = 1e3, .open_low = true},
             refused, "", "dots1, deepseek_v2, deepseek_v3: factor of the router weights of a token's experts"),
      number(
          "n_shared_experts", &M::n_shared_experts, between(0, 4096), refused, "",
          "dots1, deepseek_v2, deepseek_v3: shared experts, which process every token with weight 1, computed as one "
          "feed-forward layer of size n_shared_experts * moe_intermediate_size; null or 0 = none")
          .or_word("null", 0),
      number("first_k_dense_replace", &M::first_k_dense_replace, between(0, 1 << 16), refused, "",
             "dots1, deepseek_v2, deepseek_v3: number of first layers with a dense feed-forward layer of "
             "intermediate_size instead of experts; null = 0")
          .or_word("null", 0),
      custom("mlp_only_layers", Custom<M>{read_layers, write_layers, layers_schema, "null, or list of integers"},
             refused,
             "qwen2_moe, qwen3_moe: layers (from 0) with a dense feed-forward layer of intermediate_size instead of "
             "experts; null or [] = none")
          .unset_is("null"),
      number("decoder_sparse_step", &M::decoder_sparse_step, between(1, 1 << 16), refused, "",
             "qwen2_moe, qwen3_moe: n = only every n-th layer has experts, if mlp_only_layers does not list it; the "
             "others have a dense feed-forward layer"),
      number("shared_expert_intermediate_size", &M::shared_expert_intermediate_size, between(0, 1 << 24), refused, "",
             "qwen2_moe: intermediate size of the shared expert, which processes every token; its output is multiplied "
             "by the sigmoid of a learned linear function of the token")
          .or_word("null", 0)
          .unset_is("qwen2_moe: required; others: null"),
      number("router_aux_loss_coef", &M::router_aux_loss_coef, between(0, 1e3), refused, "",
             "coefficient of the auxiliary load-balancing loss E / (k T^2) sum_i c_i sum_t p_ti of each sequence and "
             "layer (1 if balanced), where p are scores normalized to sum to 1; 0 = off")
          .unset_is("olmoe: 0.01; mixtral, qwen2_moe, qwen3_moe: 0.001; dots1, deepseek_v2, deepseek_v3, gpt_oss: 0"),
      number(
          "router_z_loss_coef", &M::router_z_loss_coef, between(0, 1e3), refused, "",
          "coefficient of the router z-loss of each layer, the mean over tokens of (log sum exp(logits))^2; 0 = off"),
      number("bos_token_id", &M::bos_token_id, between(-1, kMaxTokenId), refused, "token",
             "beginning-of-text token; null or -1 = none")
          .or_word("null", -1),
      number("eos_token_id", &M::eos_token_id, between(-1, kMaxTokenId), refused, "token",
             "end-of-text token; null or -1 = none")
          .or_word("null", -1),
  };
  for (const std::vector<Field<M>>& more : {latent_fields(), gpt_oss_fields(), block_fields(), image_fields()})
    fields.insert(fields.end(), more.begin(), more.end());
  return fields;
}

std::vector<Field<RopeScaling>> rope_scaling_fields() {
  using R = RopeScaling;
  const Range factor{.low = 1, .high = 1e6};
  const Range frequency{.low = 0, .high = 1e6, .open_low = true};
  return {
      choice<&R::rope_type>(
          "rope_type", refused,
          "linear = divide positions by factor; llama3 and yarn = scale low frequencies only; "
          "proportional = rotate only the high-frequency pairs of a head, positions divided by factor")
          .required(),
      number("factor", &R::factor, factor, refused, "", "ratio of the new to the original context length"),
      number("low_freq_factor", &R::low_freq_factor, frequency, refused, "",
             "llama3: wavelengths above original context / this are fully scaled"),
      number("high_freq_factor", &R::high_freq_factor, frequency, refused, "",
             "llama3: wavelengths below original context / this are not scaled"),
      number("original_max_position_embeddings", &R::original_max_position_embeddings, between(0, kMaxTokenId), refused,
             "tokens", "llama3, yarn: context length before scaling"),
      number("beta_fast", &R::beta_fast, frequency, refused, "",
             "yarn: frequencies with more rotations than this in the original context are not scaled")
          .or_word("null", 32),
      number("beta_slow", &R::beta_slow, frequency, refused, "",
             "yarn: frequencies with fewer rotations than this in the original context are fully scaled")
          .or_word("null", 1),
      number("attention_factor", &R::attention_factor, between(0, 1e6), refused, "",
             "yarn: factor of cos and sin; null or 0 = 0.1 ln(factor) + 1")
          .or_word("null", 0),
      number("mscale", &R::mscale, between(0, 1e6), refused, "",
             "yarn: with mscale_all_dim, attention_factor is (0.1 mscale ln(factor) + 1) / (0.1 mscale_all_dim "
             "ln(factor) + 1)")
          .or_word("null", 0),
      number("mscale_all_dim", &R::mscale_all_dim, between(0, 1e6), refused, "", "yarn: see mscale").or_word("null", 0),
      number("partial_rotary_factor", &R::partial_rotary_factor, Range{.low = 0, .high = 1, .open_low = true}, refused,
             "", "proportional: fraction of a head's pairs that are rotated, the highest frequencies"),
      option("truncate", &R::truncate, refused,
             "yarn: round the bounds of the interpolation range to whole dimensions"),
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

ModelConfig read_model(const Json& object, const std::string& path, Notices notices) {
  require_object(object, path);
  Json own = object;
  ModelConfig m;
  if (const Json* type = own.find("model_type")) {
    m = model_defaults(ModelType(read_choice(*type, dotted(path, "model_type"), choice_names(ModelType{}))));
  }
  if (m.model_type == ModelType::vit) adopt_image_keys(own, path);
  if (m.model_type == ModelType::deepseek_v2) adopt_topk_method(own, path);
  drop_foreign_keys(own, path, m.model_type, notices);
  for (auto key : {"bos_token_id", "eos_token_id"}) take_first_id(own, key, path, notices);
  merge_rope_keys(own, path);
  // Families in which layer_types is an option.
  const bool own_lists = m.model_type == ModelType::athanor || m.model_type == ModelType::gpt_oss;
  const Dependent dependent = own_lists ? Dependent{} : take_dependent(own);
  read_fields(model_fields(), own, path, m, notices);
  apply_dependent(dependent, path, m);
  complete(m);
  validate(m, cat(object.where, ": ", path));
  for (const std::string_view key : {"n_embd", "n_layer", "n_head", "n_inner", "n_positions"}) {
    if (!own.find(key) || m.model_type == ModelType::gpt2 || !notices) continue;
    notices->push_back(
        cat(object.where, ": ", path, ".", key, " is a gpt2 name, read as ", find_field(model_fields(), key)->key));
  }
  return m;
}

Json write_model(const ModelConfig& m) { return write_fields(model_fields(), m); }

Json model_schema() {
  Json schema = schema_of(model_fields());
  Json& properties = *schema.find("properties");
  describe_foreign_keys(properties);
  for (auto key : {"use_sliding_window", "max_window_layers", "layer_types", "n_ctx", "rope_parameters"}) {
    properties.set(key, Json::object());
  }
  return schema;
}

}  // namespace athanor
