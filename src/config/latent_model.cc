// The keys of multi-head latent attention (model_type deepseek_v2 and deepseek_v3), and the checks of their sizes.
#include "config/fields.h"

#include <charconv>

#include "config/require.h"

namespace athanor {
namespace {
using enum OnResume;
using M = ModelConfig;
}  // namespace

bool has_latent_attention(ModelType type) { return type == ModelType::deepseek_v2 || type == ModelType::deepseek_v3; }
int64_t rotary_dim(const ModelConfig& m) {
  return has_latent_attention(m.model_type) ? m.qk_rope_head_dim : m.head_dim;
}
int64_t value_dim(const ModelConfig& m) { return has_latent_attention(m.model_type) ? m.v_head_dim : m.head_dim; }

bool predicts_further_tokens(const ModelConfig& m, const std::string& name) {
  constexpr std::string_view kLayers = "model.layers.";
  int64_t layer = -1;
  if (has_latent_attention(m.model_type) && name.starts_with(kLayers))
    std::from_chars(name.data() + kLayers.size(), name.data() + name.size(), layer);
  return layer >= m.num_hidden_layers;
}

std::vector<Field<ModelConfig>> latent_fields() {
  const auto size = [](std::string_view key, int64_t M::*value, double most, std::string_view help) {
    return number(key, value, between(0, most), refused, "", help).or_word("null", 0);
  };
  return {
      size("q_lora_rank", &M::q_lora_rank, 1 << 20,
           "deepseek_v2, deepseek_v3: width of the latent vector from which the queries of all heads are computed; "
           "null or 0 = queries are a linear function of the layer's input"),
      size("kv_lora_rank", &M::kv_lora_rank, 1 << 20,
           "deepseek_v2, deepseek_v3: width of the latent vector from which the keys and values of all heads are "
           "computed")
          .unset_is("deepseek_v2, deepseek_v3: required"),
      size("qk_nope_head_dim", &M::qk_nope_head_dim, 1 << 13,
           "deepseek_v2, deepseek_v3: channels of a query or key head without RoPE; head_dim is the sum with "
           "qk_rope_head_dim")
          .unset_is("deepseek_v2, deepseek_v3: required"),
      size("qk_rope_head_dim", &M::qk_rope_head_dim, 1 << 13,
           "deepseek_v2, deepseek_v3: channels of a query or key head with RoPE; all key heads have the same ones")
          .unset_is("deepseek_v2, deepseek_v3: required"),
      size("v_head_dim", &M::v_head_dim, 1 << 13, "deepseek_v2, deepseek_v3: channels of a value head")
          .unset_is("deepseek_v2, deepseek_v3: required"),
      option("rope_interleave", &M::rope_interleave, refused,
             "deepseek_v2, deepseek_v3: RoPE rotates pairs of neighbouring channels, not pairs of one channel of each "
             "half")
          .unset_is("deepseek_v2, deepseek_v3: true; others: false"),
  };
}

void validate_latent(const ModelConfig& m, std::string_view where) {
  const bool latent = has_latent_attention(m.model_type);
  for (const auto& [key, value] : {std::pair{"q_lora_rank", m.q_lora_rank},
                                   {"kv_lora_rank", m.kv_lora_rank},
                                   {"qk_nope_head_dim", m.qk_nope_head_dim},
                                   {"qk_rope_head_dim", m.qk_rope_head_dim},
                                   {"v_head_dim", m.v_head_dim}}) {
    require_key(latent || value == 0, where, key, name_of(m.model_type), " has no latent attention, got ", value,
                "; leave it out, or take model_type deepseek_v2 or deepseek_v3");
    require_key(!latent || value > 0 || std::string_view(key) == "q_lora_rank", where, key, "is required for ",
                name_of(m.model_type), ", got ", value);
  }
  require_key(latent || !m.rope_interleave, where, "rope_interleave", name_of(m.model_type),
              " has false, got true; leave it out, or take model_type deepseek_v2 or deepseek_v3");
  if (!latent) return;
  if (m.model_type == ModelType::deepseek_v2) {  // what transformers computes without asking these keys
    require_key(m.rope_interleave, where, "rope_interleave", "deepseek_v2 has true, got false; take deepseek_v3");
    require_key(!m.norm_topk_prob, where, "norm_topk_prob", "deepseek_v2 has false, got true; take deepseek_v3");
  }
  require_key(m.qk_rope_head_dim % 2 == 0, where, "qk_rope_head_dim", "rotary embeddings need an even number, got ",
              m.qk_rope_head_dim);
  require_key(m.head_dim == m.qk_nope_head_dim + m.qk_rope_head_dim, where, "head_dim",
              "expected qk_nope_head_dim + qk_rope_head_dim, ", m.qk_nope_head_dim, " + ", m.qk_rope_head_dim, ", got ",
              m.head_dim, "; leave it out");
  require_key(m.v_head_dim <= m.head_dim, where, "v_head_dim", "expected at most qk_nope_head_dim + qk_rope_head_dim, ",
              m.head_dim, ", got ", m.v_head_dim);
  require_key(m.num_key_value_heads == m.num_attention_heads, where, "num_key_value_heads", name_of(m.model_type),
              " has as many as num_attention_heads, ", m.num_attention_heads, ", got ", m.num_key_value_heads,
              "; leave it out");
  require_key(m.rope_scaling.rope_type != RopeType::proportional, where, "rope_scaling.rope_type",
              name_of(m.model_type),
              " rotates the channels of qk_rope_head_dim, all of them, got proportional; choose another rope_type");
}

void adopt_topk_method(Json& model, const std::string& path) {
  const Json* method = model.find("topk_method");
  if (!method) return;
  if (!method->is(Json::Kind::string) || (method->text != "greedy" && method->text != "group_limited_greedy"))
    bad_value(*method, dotted(path, "topk_method"), "\"greedy\" or \"group_limited_greedy\"");
  if (method->text == "greedy")
    for (const char* key : {"n_group", "topk_group"}) model.set(key, Json::of(int64_t{1}));
  model.erase("topk_method");
}

void add_latent_keys(const ModelConfig& m, Json& out) {
  out.erase("head_dim");  // transformers derives it, with another meaning
  out.set("q_lora_rank", m.q_lora_rank > 0 ? Json::of(m.q_lora_rank) : Json());
  out.set("kv_lora_rank", Json::of(m.kv_lora_rank));
  out.set("qk_nope_head_dim", Json::of(m.qk_nope_head_dim));
  out.set("qk_rope_head_dim", Json::of(m.qk_rope_head_dim));
  out.set("v_head_dim", Json::of(m.v_head_dim));
  if (m.model_type == ModelType::deepseek_v2) {
    out.set("topk_method", Json::of(m.n_group > 1 ? "group_limited_greedy" : "greedy"));
    return;
  }
  out.set("rope_interleave", Json::of(m.rope_interleave));
  out.set("num_nextn_predict_layers", Json::of(int64_t{0}));  // transformers assumes 1
}

}  // namespace athanor
