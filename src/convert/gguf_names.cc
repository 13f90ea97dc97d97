#include "convert/gguf_names.h"

#include <map>
#include <string_view>

#include "base/error.h"

namespace athanor {
namespace {

// Last components of tensor names: Hugging Face to GGUF.
const std::map<std::string, std::string>& block_names() {
  static const std::map<std::string, std::string> names = {
      {"ln_1", "attn_norm"},
      {"attn.c_attn", "attn_qkv"},
      {"attn.c_proj", "attn_output"},
      {"ln_2", "ffn_norm"},
      {"mlp.c_fc", "ffn_up"},
      {"mlp.c_proj", "ffn_down"},
      {"input_layernorm", "attn_norm"},
      {"self_attn.q_proj", "attn_q"},
      {"self_attn.k_proj", "attn_k"},
      {"self_attn.v_proj", "attn_v"},
      {"self_attn.q_norm", "attn_q_norm"},
      {"self_attn.k_norm", "attn_k_norm"},
      {"self_attn.o_proj", "attn_output"},
      {"self_attn.q_a_proj", "attn_q_a"},
      {"self_attn.q_a_layernorm", "attn_q_a_norm"},
      {"self_attn.q_b_proj", "attn_q_b"},
      {"self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"},
      {"self_attn.kv_a_layernorm", "attn_kv_a_norm"},
      {"post_attention_layernorm", "ffn_norm"},
      {"mlp.gate_proj", "ffn_gate"},
      {"mlp.up_proj", "ffn_up"},
      {"mlp.down_proj", "ffn_down"},
      {"mlp.gate", "ffn_gate_inp"},
      {"mlp.router", "ffn_gate_inp"},
      {"mlp.shared_experts.gate_proj", "ffn_gate_shexp"},
      {"mlp.shared_experts.up_proj", "ffn_up_shexp"},
      {"mlp.shared_experts.down_proj", "ffn_down_shexp"},
      {"mlp.shared_expert.gate_proj", "ffn_gate_shexp"},
      {"mlp.shared_expert.up_proj", "ffn_up_shexp"},
      {"mlp.shared_expert.down_proj", "ffn_down_shexp"},
      {"mlp.shared_expert_gate", "ffn_gate_inp_shexp"},
      {"block_sparse_moe.gate", "ffn_gate_inp"},
  };
  return names;
}

}  // namespace

const char* gguf_architecture(ModelType type) {
  switch (type) {
    case ModelType::gpt2:
      return "gpt2";
    case ModelType::llama:
    case ModelType::mistral:
    case ModelType::mixtral:
      return "llama";
    case ModelType::qwen2:
      return "qwen2";
    case ModelType::qwen3:
      return "qwen3";
    case ModelType::qwen2_moe:
      return "qwen2moe";
    case ModelType::qwen3_moe:
      return "qwen3moe";
    case ModelType::olmoe:
      return "olmoe";
    case ModelType::dots1:
      return "dots1";
    case ModelType::deepseek_v2:
    case ModelType::deepseek_v3:
      return "deepseek2";
    case ModelType::gpt_oss:
      return "gpt-oss";
    case ModelType::athanor:
    case ModelType::vit:
      break;
  }
  return "";
}

std::string gguf_name(const std::string& name, std::string_view architecture) {
  static const std::map<std::string, std::string> outside = {
      {"transformer.wte", "token_embd"},    {"transformer.wpe", "position_embd"}, {"transformer.ln_f", "output_norm"},
      {"model.embed_tokens", "token_embd"}, {"model.norm", "output_norm"},        {"lm_head", "output"},
  };
  static const std::map<std::string, std::string> parameters = {
      // parameters that are not called weight or bias
      {"mlp.gate.e_score_correction_bias", "exp_probs_b.bias"},
      {"self_attn.sinks", "attn_sinks.weight"}};
  const size_t dot = name.rfind('.');
  const std::string module = name.substr(0, dot), kind = name.substr(dot);  // ".weight" or ".bias"
  if (const auto it = outside.find(module); it != outside.end()) return it->second + kind;
  for (const std::string prefix : {"transformer.h.", "model.layers."}) {
    if (!module.starts_with(prefix)) continue;
    const size_t end = module.find('.', prefix.size());
    const std::string block = cat("blk.", module.substr(prefix.size(), end - prefix.size()), ".");
    if (const auto it = parameters.find(name.substr(end + 1)); it != parameters.end()) return block + it->second;
    const auto it = block_names().find(module.substr(end + 1));
    if (it == block_names().end()) continue;
    if (it->second == "ffn_norm" && architecture == "gpt-oss") return cat(block, "post_attention_norm", kind);
    return cat(block, it->second, kind);
  }
  CHECK(false, "the tensor ", name, " has no name in GGUF");
}

std::optional<ExpertName> expert_name(const std::string& name) {
  static const std::map<std::string, std::string> kinds = {
      {"gate_proj", "ffn_gate_exps"}, {"up_proj", "ffn_up_exps"}, {"down_proj", "ffn_down_exps"},
      {"w1", "ffn_gate_exps"},        {"w3", "ffn_up_exps"},      {"w2", "ffn_down_exps"},
  };
  const std::string before = "model.layers.", middle = ".experts.";
  const size_t experts = name.find(middle);
  if (!name.starts_with(before) || experts == std::string::npos) return {};
  const size_t number = experts + middle.size(), kind = name.find('.', number) + 1, end = name.find('.', kind);
  const auto it = kinds.find(name.substr(kind, end - kind));
  CHECK(it != kinds.end(), "the tensor ", name, " has no name in GGUF");
  const std::string layer = name.substr(before.size(), name.find('.', before.size()) - before.size());
  return ExpertName{cat("blk.", layer, ".", it->second, name.substr(end)), std::stoll(name.substr(number))};
}

std::optional<LatentHeadNames> latent_head_names(const std::string& name) {
  constexpr std::string_view before = "model.layers.", after = ".self_attn.kv_b_proj.weight";
  if (!name.starts_with(before) || !name.ends_with(after)) return {};
  const std::string layer = name.substr(before.size(), name.size() - before.size() - after.size());
  return LatentHeadNames{cat("blk.", layer, ".attn_k_b.weight"), cat("blk.", layer, ".attn_v_b.weight")};
}

bool is_row_vector(const std::string& name) { return name.ends_with(".mlp.shared_expert_gate.weight"); }

GgufLayout gguf_layout(const ModelConfig& m, const ModelFolder::Weight& w) {
  GgufLayout layout{.shape = {w.shape.dim.begin(), w.shape.dim.begin() + w.shape.rank}};
  layout.transposed = w.shape.rank == 2 && w.name.starts_with("transformer.h.");
  layout.interleaved = std::string_view(gguf_architecture(m.model_type)) == "llama" &&
                       (w.name.ends_with("q_proj.weight") || w.name.ends_with("k_proj.weight"));
  if (layout.transposed) std::swap(layout.shape[0], layout.shape[1]);
  if (is_row_vector(w.name)) layout.shape.erase(layout.shape.begin());
  return layout;
}

}  // namespace athanor
