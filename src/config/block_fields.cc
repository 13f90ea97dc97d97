// Options of a model's blocks that are fixed in every published family and free with model_type athanor.
#include "base/error.h"
#include "config/fields.h"
#include "config/fields_walk.h"

namespace athanor {
namespace {

using enum OnResume;
using M = ModelConfig;
constexpr Range kLambda = between(-1e3, 1e3);
constexpr Range kBlocks = between(0, 1 << 20);

Json layer_types_schema() { return list_schema(choice_schema(choice_names(LayerType{}))); }
Json ranges_schema() {
  return null_or(schema_from(R"({"type": "object", "additionalProperties": {"type": "number", "minimum": 0}})"));
}

template <std::vector<double> M::*L>
Field<M> numbers(std::string_view key, std::string_view help) {
  const auto read = [](M& out, const Json& value, const std::string& path, Notices) {
    out.*L = read_numbers(value, path, kLambda, "null, or a list of a number for each layer, or of one");
  };
  const auto write = [](const M& in) { return write_numbers(in.*L); };
  return custom(key, Custom<M>{read, write, numbers_schema, "null, or list of numbers"}, refused, help)
      .unset_is("null");
}

// Lists of block or table indices; JSON null is stored as -1.
Json indices_schema() { return list_schema(null_or(schema_from(R"({"type": "integer"})"))); }
template <std::vector<int64_t> M::*L>
Field<M> indices(std::string_view key, std::string_view help) {
  const auto read = [](M& out, const Json& value, const std::string& path, Notices) {
    out.*L = read_integers(value, path, between(0, 1 << 16), "null, or a list of numbers and null", {"null", -1});
  };
  const auto write = [](const M& in) { return write_integers(in.*L); };
  return custom(key, Custom<M>{read, write, indices_schema, "null, or list of integers and null"}, refused, help)
      .unset_is("null");
}

void read_layer_types(M& out, const Json& value, const std::string& path, Notices) {
  out.layer_types.clear();
  if (value.is(Json::Kind::null)) return;
  if (!value.is(Json::Kind::array)) bad_value(value, path, "null, or a list of a word for each layer");
  for (size_t i = 0; i < value.items.size(); ++i)
    out.layer_types.push_back(
        LayerType(read_choice(value.items[i], cat(path, "[", i, "]"), choice_names(LayerType{}))));
}
Json write_layer_types(const M& in) {
  if (in.layer_types.empty()) return Json();
  Json list = Json::array();
  for (const LayerType type : in.layer_types) list.items.push_back(Json::of(name_of(type)));
  return list;
}

void read_ranges(M& out, const Json& value, const std::string& path, Notices) {
  out.initializer_ranges.clear();
  if (value.is(Json::Kind::null)) return;
  require_object(value, path);
  for (size_t i = 0; i < value.keys.size(); ++i)
    out.initializer_ranges.emplace_back(value.keys[i],
                                        read_real(value.items[i], dotted(path, value.keys[i]), between(0, 100)));
}
Json write_ranges(const M& in) {
  if (in.initializer_ranges.empty()) return Json();
  Json object = Json::object();
  for (const auto& [pattern, std_dev] : in.initializer_ranges) object.set(pattern, Json::of(std_dev));
  return object;
}

}  // namespace

std::vector<Field<ModelConfig>> block_fields() {
  return {
      choice<&M::hidden_act>("hidden_act", refused,
                             "activation of feed-forward layers (gelu: the exact form); fixed by the family except "
                             "athanor")
          .unset_is("gpt2: gelu_pytorch_tanh; vit: gelu; others: silu"),
      option("gated_mlp", &M::gated_mlp, refused,
             "gated feed-forward layers, down(act(gate(x)) * up(x)), instead of down(act(up(x))); fixed by the family "
             "except athanor")
          .unset_is("gpt2, vit: false; others: true"),
      option("mlp_bias", &M::mlp_bias, refused, "bias in feed-forward layers; fixed by the family except athanor")
          .unset_is("gpt2, vit: true; others: false"),
      option("lm_head_bias", &M::lm_head_bias, refused, "bias of the output head; fixed by the family except athanor")
          .unset_is("vit: true; others: false"),
      option("norm_elementwise_affine", &M::norm_elementwise_affine, refused,
             "athanor: norms of the residual stream have a learned gain"),
      option("qk_norm_elementwise_affine", &M::qk_norm_elementwise_affine, refused,
             "athanor: the norms of qk_norm have a learned gain"),
      option("embedding_norm", &M::embedding_norm, refused,
             "athanor: a norm between the embedding and the first block"),
      choice<&M::sublayer_norm>("sublayer_norm", refused,
                                "athanor: position of the norms of attention and feed-forward layer: before = on their "
                                "inputs, after = on their outputs before the residual add (OLMo 2), both (Gemma 2)"),
      number("attention_multiplier", &M::attention_multiplier, between(0, 1e3), refused, "",
             "athanor: scale of attention scores; null or 0 = 1 / sqrt(head_dim)")
          .or_word("null", 0),
      number(
          "attn_logit_softcapping", &M::attn_logit_softcapping, between(0, 1e6), refused, "",
          "athanor: softcap of attention scores, softcap * tanh(scores / softcap) before the softmax; null or 0 = off")
          .or_word("null", 0),
      option("attention_sinks", &M::attention_sinks, refused,
             "athanor: attention sinks: a learned logit per head, initially 0, in the softmax of attention without a "
             "value, as in gpt-oss; fixed by the family except athanor")
          .unset_is("gpt_oss: true; others: false"),
      custom("layer_types",
             Custom<M>{read_layer_types, write_layer_types, layer_types_schema, "null, or list of words"}, refused,
             "athanor, gpt_oss: attention type per layer: full_attention, sliding_attention (sliding_window) or "
             "sparse_attention (pattern of sparse_block_size, sparse_local_blocks and sparse_global_blocks); null = "
             "sliding_window in all layers")
          .unset_is("gpt_oss: sliding_attention and full_attention in turn, with sliding_window 0 full_attention; "
                    "others: null"),
      number("sparse_block_size", &M::sparse_block_size, kBlocks, refused, "tokens",
             "athanor: block size of sparse_attention"),
      number("sparse_local_blocks", &M::sparse_local_blocks, kBlocks, refused, "blocks",
             "athanor: blocks per group of sparse_attention; a query sees the keys of its own group"),
      number("sparse_global_blocks", &M::sparse_global_blocks, kBlocks, refused, "blocks",
             "athanor: number of last blocks of each earlier group that a sparse_attention query also sees; 0 = none"),
      numbers<&M::resid_lambdas>("resid_lambdas",
                                 "athanor: initial value, per layer or one for all, of a learned factor of the "
                                 "residual stream at each block; needs x0_lambdas; null = none"),
      numbers<&M::x0_lambdas>("x0_lambdas",
                              "athanor: initial value, per layer or one for all, of a learned factor with which each "
                              "block adds the (normed) embedding to the residual stream; null = none"),
      indices<&M::skip_from>(
          "skip_from",
          "athanor: U-net skips: for each layer, and last for the final norm, the block (from 0) whose output is added "
          "to the residual stream before it, or null; a negative factor at the end subtracts it again; null = none"),
      numbers<&M::skip_lambdas>(
          "skip_lambdas",
          "athanor: initial values of the learned factors of skip_from, one per entry or one for all; null = none"),
      indices<&M::value_embeddings>(
          "value_embeddings",
          "athanor: for each layer the index (from 0) of the value-embedding table added to the attention values by "
          "token, or null; layers with the same index share a table; null = none"),
      numbers<&M::value_embedding_lambdas>("value_embedding_lambdas",
                                           "athanor: initial value, per layer or one for all, of a learned factor of "
                                           "the value embedding; null = 1, not trained"),
      numbers<&M::value_residual_lambdas>(
          "value_residual_lambdas",
          "athanor: initial value, per layer or one for all, of a learned factor with which later layers add the first "
          "layer's attention values to their own; null = none"),
      numbers<&M::value_lambdas>(
          "value_lambdas",
          "athanor: initial value, per layer or one for all, of a learned factor of a layer's own values when "
          "value_embeddings or value_residual_lambdas add others; null = 1, not trained"),
      number("value_gate_channels", &M::value_gate_channels, between(0, 1 << 24), refused, "",
             "athanor: input channels of the value-embedding gate: value embeddings are multiplied by value_gate_scale "
             "* sigmoid(linear(first channels of the block's normed input)), one gate per key/value head; 0 = no gate"),
      number("value_gate_scale", &M::value_gate_scale, between(0, 1e3), refused, "",
             "athanor: scale of the gate of value_gate_channels"),
      number("attention_gate_channels", &M::attention_gate_channels, between(0, 1 << 24), refused, "",
             "athanor: input channels of the attention gate: each head's output is multiplied by sigmoid(linear(first "
             "channels of the block's normed input)); 0 = no gate"),
      number(
          "smear_channels", &M::smear_channels, between(0, 1 << 24), refused, "",
          "athanor: input channels of the smear gate: each token's (normed) embedding gets the previous token's of the "
          "same document added, times a learned factor (initially 0) and sigmoid(linear(first channels)); 0 = none"),
      custom("initializer_ranges", Custom<M>{read_ranges, write_ranges, ranges_schema, "null, or object of numbers"},
             refused,
             "standard deviations of initial weights by patterns (* and ?) of parameter names, such as "
             "\"*.down_proj.weight\": 0; the first match applies, 0 = zeros; other weights use initializer_range")
          .unset_is("null"),
  };
}

}  // namespace athanor
