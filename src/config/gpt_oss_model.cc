// The keys of GPT-OSS (model_type gpt_oss): layers with and without a window in turn, and the clamp of its experts.
#include "config/fields.h"

#include "config/require.h"

namespace athanor {

bool has_biased_experts(ModelType type) { return type == ModelType::gpt_oss; }
bool has_output_bias(const ModelConfig& m) {
  return m.attention_bias && (m.model_type == ModelType::athanor || m.model_type == ModelType::gpt_oss);
}

std::vector<Field<ModelConfig>> gpt_oss_fields() {
  return {
      number("swiglu_limit", &ModelConfig::swiglu_limit, between(0, 1e6), OnResume::refused, "",
             "gpt_oss: experts compute W_down ((u + 1) g sigmoid(1.702 g)) with the gate g of at most this, and up u "
             "between this and its negative")
          .unset_is("gpt_oss: 7; others: 0")};
}

void complete_gpt_oss(ModelConfig& m) {
  if (m.model_type != ModelType::gpt_oss || !m.layer_types.empty()) return;
  for (int64_t l = 0; l < m.num_hidden_layers; ++l)
    m.layer_types.push_back(m.sliding_window > 0 && l % 2 == 0 ? LayerType::sliding_attention
                                                               : LayerType::full_attention);
}

void validate_gpt_oss(const ModelConfig& m, std::string_view where) {
  if (m.model_type != ModelType::gpt_oss) {
    require_key(m.swiglu_limit == 0, where, "swiglu_limit", name_of(m.model_type), " does not clamp, got ",
                m.swiglu_limit, "; leave it out, or take model_type gpt_oss");
    return;
  }
  require_key(m.swiglu_limit > 0, where, "swiglu_limit", "expected more than 0 for gpt_oss, got ", m.swiglu_limit);
  require_key(m.norm_topk_prob, where, "norm_topk_prob", "gpt_oss has true, got false; choose another model_type");
  for (const LayerType type : m.layer_types)
    require_key(type != LayerType::sparse_attention, where, "layer_types",
                "gpt_oss has full_attention and sliding_attention, got sparse_attention; use model_type athanor");
}

void add_gpt_oss_keys(const ModelConfig& m, Json& out) {
  Json types = Json::array();
  for (const LayerType type : m.layer_types) types.items.push_back(Json::of(name_of(type)));
  out.set("layer_types", std::move(types));
  out.set("swiglu_limit", Json::of(m.swiglu_limit));
}

void default_gpt_oss(Json& model, const std::string& path, Notices notices) {
  // OpenAI's files have 0.9, for a loss that they turn off (output_router_logits is false).
  if (const Json* balance = model.find("router_aux_loss_coef"); balance && balance->real == 0.9) {
    if (notices)
      notices->push_back(cat(balance->where, ": ", dotted(path, "router_aux_loss_coef"), " ", to_line(*balance),
                             " is left out: how a model was trained is no part of it"));
    model.erase("router_aux_loss_coef");
  }
  const Json* scaling = model.find("rope_scaling");
  if (scaling && !scaling->is(Json::Kind::null)) return;
  model.set("rope_scaling", parse_json(R"({"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
                                           "truncate": false, "original_max_position_embeddings": 4096})",
                                       "published defaults"));
}

}  // namespace athanor
