#include "convert/gguf_model.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "base/error.h"
#include "convert/gguf_names.h"

namespace athanor {
namespace {

constexpr std::array<GgufMixture, 3> kFloats = {{
    {"f32", 0, GgmlType::f32},
    {"f16", 1, GgmlType::f16},
    {"bf16", 32, GgmlType::bf16},
}};
constexpr std::array<GgufMixture, 11> kMixtures = {{
    {"q4_0", 2, GgmlType::q4_0},
    {"q4_1", 3, GgmlType::q4_1},
    {"q5_0", 8, GgmlType::q5_0},
    {"q5_1", 9, GgmlType::q5_1},
    {"q8_0", 7, GgmlType::q8_0},
    {"q4_K_S", 14, GgmlType::q4_k},
    {"q4_K_M", 15, GgmlType::q4_k, true},
    {"q5_K_S", 16, GgmlType::q5_k},
    {"q5_K_M", 17, GgmlType::q5_k, true},
    {"q6_K", 18, GgmlType::q6_k},
    {"mxfp4_moe", 38, GgmlType::mxfp4},
}};

// Layer index in a name: 7 for "blk.7.ffn_down.weight"; -1 outside of blocks.
int64_t layer_of(std::string_view name) {
  constexpr std::string_view prefix = "blk.";
  int64_t layer = -1;
  if (name.starts_with(prefix)) std::from_chars(name.data() + prefix.size(), name.data() + name.size(), layer);
  return layer;
}

// True for the first and last eighth of the layers, and for every third layer between them.
bool has_more_bits(int64_t layer, int64_t layers) {
  return layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2;
}

// True for tensors of three dimensions: matrices of all experts, and of all heads of latent attention.
bool is_stack(std::string_view name) {
  return name.ends_with("_exps.weight") || name.ends_with("attn_k_b.weight") || name.ends_with("attn_v_b.weight");
}

// True for models like Mixtral 8x7B, whose attention is small next to the experts.
bool has_eight_experts(const ModelConfig& m) { return has_experts(m.model_type) && m.num_experts == 8; }

// llama.cpp's criterion for Llama 70B, where each value head serves 8 query heads, so that more bits for values are
// cheap.
bool is_70b(const ModelConfig& m) {
  if (m.num_hidden_layers != 80) return false;
  if (m.model_type == ModelType::qwen2) return true;
  const bool llama = std::string_view(gguf_architecture(m.model_type)) == "llama";
  return llama && m.num_attention_heads != m.num_key_value_heads;
}

GgmlType for_values(const GgufMixture& mix, const ModelConfig& m, int64_t layer) {
  GgmlType type = mix.type;
  if (mix.more && has_more_bits(layer, m.num_hidden_layers)) type = GgmlType::q6_k;
  if (type == GgmlType::q4_k && !mix.more && layer < 4) type = GgmlType::q5_k;
  if (type == GgmlType::q4_k && is_70b(m)) type = GgmlType::q5_k;
  return type;
}

GgmlType for_down(const GgufMixture& mix, const ModelConfig& m, int64_t layer, bool importance) {
  const bool first_eighth = layer < m.num_hidden_layers / 8;
  if (mix.more) return has_more_bits(layer, m.num_hidden_layers) ? GgmlType::q6_k : mix.type;
  if (!first_eighth) return mix.type;
  if (mix.type == GgmlType::q4_k) return GgmlType::q5_k;
  if (importance && mix.type == GgmlType::q4_0) return GgmlType::q4_1;
  if (importance && mix.type == GgmlType::q5_0) return GgmlType::q5_1;
  return mix.type;
}

// The type itself if its block size divides `columns`, else one with smaller blocks.
GgmlType fitting(GgmlType type, int64_t columns) {
  if (columns % ggml_info(type).block == 0) return type;
  const GgmlType smaller = type == GgmlType::q4_k   ? GgmlType::q5_0
                           : type == GgmlType::q5_k ? GgmlType::q5_1
                           : type == GgmlType::q6_k ? GgmlType::q8_0
                                                    : GgmlType::f16;
  return columns % ggml_info(smaller).block == 0 ? smaller : GgmlType::f16;
}

}  // namespace

std::optional<GgufMixture> mixture_named(std::string_view name) {
  if (name == "q4_K" || name == "q5_K") return mixture_named(std::string(name) + "_M");
  const auto it = std::ranges::find_if(kMixtures, [name](const GgufMixture& mix) { return mix.name == name; });
  return it == kMixtures.end() ? std::nullopt : std::optional(*it);
}

std::vector<std::string> mixture_names() {
  std::vector<std::string> names = {"q4_K", "q5_K"};
  for (const GgufMixture& mix : kMixtures) names.emplace_back(mix.name);
  std::ranges::sort(names);
  return names;
}

const GgufMixture& mixture_of_floats(GgmlType type) {
  const auto it = std::ranges::find(kFloats, type, &GgufMixture::type);
  CHECK(it != kFloats.end(), "not a float: ", int(type));
  return *it;
}

GgmlType matrix_type(const GgufMixture& mix, const ModelConfig& m, const std::string& name, int64_t columns,
                     bool importance) {
  const GgmlTypeInfo& most = ggml_info(mix.type);
  if (!most.quantize) return mix.type;
  GgmlType type = mix.type;
  const int64_t layer = layer_of(name);
  const bool eight = has_eight_experts(m);
  if (mix.type == GgmlType::mxfp4)
    type = is_stack(name) ? GgmlType::mxfp4 : GgmlType::q8_0;
  else if (name == (m.tie_word_embeddings ? "token_embd.weight" : "output.weight"))
    type = mix.type == GgmlType::q8_0 || columns % most.block != 0 ? GgmlType::q8_0 : GgmlType::q6_k;
  else if (eight && (name.ends_with("attn_k.weight") || name.ends_with("attn_v.weight")))
    type = GgmlType::q8_0;
  else if (eight && name.ends_with("attn_output.weight") && mix.type == GgmlType::q4_k)
    type = GgmlType::q5_k;
  else if (name.ends_with("attn_v.weight") || name.ends_with("attn_qkv.weight"))
    type = for_values(mix, m, layer);
  else if (name.find("ffn_down") != name.npos)
    type = for_down(mix, m, layer, importance);
  return fitting(type, columns);
}

}  // namespace athanor
