// Options that only model_type athanor leaves open: finds those that a shape uses, and checks their combinations.
#include "config/model_config.h"

#include <algorithm>

#include "config/fields_walk.h"
#include "config/require.h"

namespace athanor {
namespace {

// Sparse layers and their three keys must be given together.
void validate_sparse(const ModelConfig& m, std::string_view where) {
  const bool sparse = std::ranges::count(m.layer_types, LayerType::sparse_attention) > 0;
  for (const auto& [key, value] : {std::pair{"sparse_block_size", m.sparse_block_size},
                                   {"sparse_local_blocks", m.sparse_local_blocks},
                                   {"sparse_global_blocks", m.sparse_global_blocks}})
    require(sparse || value == 0, where, ".", key, ": ", value,
            ", but no layer of layer_types has sparse_attention; set it to 0 or change the list");
  if (!sparse) return;
  require(m.sparse_block_size > 0, where, ".",
          "layer_types: a layer has sparse_attention, but sparse_block_size is 0; set it to the tokens of a block");
  require(m.sparse_local_blocks > 0, where, ".",
          "layer_types: a layer has sparse_attention, but sparse_local_blocks is 0; set it to the blocks of a group");
  require(m.sparse_global_blocks < m.sparse_local_blocks, where, ".", "sparse_global_blocks: expected fewer than the ",
          m.sparse_local_blocks, " blocks of sparse_local_blocks, got ", m.sparse_global_blocks,
          m.sparse_global_blocks == m.sparse_local_blocks ? "; with all of them visible it is full_attention" : "");
}

void validate_lists(const ModelConfig& m, std::string_view where) {
  const auto layers = size_t(m.num_hidden_layers);
  const auto counted = [&](std::string_view key, size_t size, const char* more) {
    require(size == 0 || size == layers, where, ".", key, ": ", size, " entries for the ", layers,
            " layers of num_hidden_layers; give one for each", more);
  };
  counted("layer_types", m.layer_types.size(), "");
  counted("resid_lambdas", m.resid_lambdas.size(), ", or one for all");
  counted("x0_lambdas", m.x0_lambdas.size(), ", or one for all");
  require(
      m.resid_lambdas.empty() || !m.x0_lambdas.empty(), where, ".",
      "resid_lambdas: needs x0_lambdas, which is not given; give it, such as [0], which begins without the embedding");
  require(m.skip_from.empty() == m.skip_lambdas.empty(), where, ".",
          m.skip_from.empty() ? "skip_lambdas: needs skip_from, which is not given; give it, or leave skip_lambdas out"
                              : "skip_from: needs skip_lambdas, which is not given; give it, such as [1], which adds "
                                "the earlier block unscaled");
  require(m.skip_from.empty() || m.skip_from.size() == layers + 1, where, ".", "skip_from: ", m.skip_from.size(),
          " entries for the ", layers, " layers of num_hidden_layers and the final norm; give one for each");
  require(m.skip_lambdas.empty() || m.skip_lambdas.size() == layers + 1, where, ".",
          "skip_lambdas: ", m.skip_lambdas.size(), " entries for the ", layers + 1,
          " of skip_from; give one for each, or one for all");
  counted("value_embeddings", m.value_embeddings.size(), "");
  counted("value_embedding_lambdas", m.value_embedding_lambdas.size(), ", or one for all");
  counted("value_residual_lambdas", m.value_residual_lambdas.size(), ", or one for all");
  counted("value_lambdas", m.value_lambdas.size(), ", or one for all");
  for (size_t i = 0; i < m.skip_from.size(); ++i)
    require(m.skip_from[i] < int64_t(i), where, ".", "skip_from[", i, "]: expected a block before it, of 0 to ",
            int64_t(i) - 1, ", or null, got ", m.skip_from[i]);
  validate_sparse(m, where);
  if (m.layer_types.empty()) return;
  const bool slides = std::ranges::count(m.layer_types, LayerType::sliding_attention) > 0;
  require(!slides || m.sliding_window > 0, where, ".",
          "layer_types: a layer has sliding_attention, but sliding_window is 0; set it to the tokens that such layers "
          "see");
  require(slides || m.sliding_window == 0, where, ".", "sliding_window: ", m.sliding_window,
          ", but no layer of layer_types has sliding_attention; set it to 0 or change the list");
}

void validate_values(const ModelConfig& m, std::string_view where) {
  const bool embeddings = !m.value_embeddings.empty();
  require(embeddings || m.value_embedding_lambdas.empty(), where, ".",
          "value_embedding_lambdas: needs value_embeddings, which is not given; leave one out or give the other");
  require(embeddings || m.value_gate_channels == 0, where, ".", "value_gate_channels: ", m.value_gate_channels,
          ", but value_embeddings, which this gate scales, is not given; set it to 0 or give value_embeddings");
  require(embeddings || !m.value_residual_lambdas.empty() || m.value_lambdas.empty(), where, ".",
          "value_lambdas: needs value_embeddings or value_residual_lambdas, but neither is given; give one of them, or "
          "leave value_lambdas out");
  require(m.value_residual_lambdas.empty() || m.num_hidden_layers > 1, where, ".",
          "value_residual_lambdas: later layers add the values of the first, and num_hidden_layers is 1; set it to 2 "
          "or more, or leave value_residual_lambdas out");
  const int64_t tables = value_tables(m);
  for (int64_t t = 0; t < tables; ++t)
    require(std::ranges::count(m.value_embeddings, t) > 0, where, ".", "value_embeddings: no layer has table ", t,
            " of the tables 0 to ", tables - 1, "; number them without gaps");
  require(!embeddings || tables > 0, where, ".",
          "value_embeddings: expected a table for at least one layer, got null for all; set the key to null");
  const auto within = [&](std::string_view key, int64_t channels) {
    require(channels <= m.hidden_size, where, ".", key, ": ", channels, " channels are more than hidden_size ",
            m.hidden_size, "; set it to at most that");
  };
  within("value_gate_channels", m.value_gate_channels);
  within("attention_gate_channels", m.attention_gate_channels);
  within("smear_channels", m.smear_channels);
}

}  // namespace

int64_t value_tables(const ModelConfig& m) {
  return m.value_embeddings.empty() ? 0 : *std::ranges::max_element(m.value_embeddings) + 1;
}
bool has_value_embedding(const ModelConfig& m, int64_t layer) {
  return !m.value_embeddings.empty() && m.value_embeddings[size_t(layer)] >= 0;
}
bool adds_first_values(const ModelConfig& m, int64_t layer) { return !m.value_residual_lambdas.empty() && layer > 0; }

std::string differing_option(const ModelConfig& a, const ModelConfig& b) {
  for (const auto& field : block_fields()) {
    if (field.key == "initializer_ranges") continue;  // does not affect trained weights
    const std::string value = to_line(write_field(field, a));
    if (value != to_line(write_field(field, b))) return cat(field.key, " ", value);
  }
  return "";
}

int64_t window_of(const ModelConfig& m, int64_t layer) {
  const bool slides = m.layer_types.empty() || m.layer_types[size_t(layer)] == LayerType::sliding_attention;
  return slides ? m.sliding_window : 0;
}

SparsePattern sparse_pattern_of(const ModelConfig& m, int64_t layer) {
  if (m.layer_types.empty() || m.layer_types[size_t(layer)] != LayerType::sparse_attention) return {};
  return {.group = m.sparse_block_size * m.sparse_local_blocks,
          .summary = m.sparse_block_size * m.sparse_global_blocks};
}

std::string option_of_athanor(const ModelConfig& m) {
  ModelConfig llama = model_defaults(ModelType::llama);
  if (const std::string option = differing_option(m, llama); !option.empty()) return option;
  return m.rope_scaling.rope_type == RopeType::proportional ? "rope_scaling.rope_type proportional" : "";
}

void validate_options(const ModelConfig& m, std::string_view where) {
  if (m.model_type != ModelType::athanor) {
    ModelConfig family = model_defaults(m.model_type);
    if (m.model_type == ModelType::gpt_oss) {
      family.layer_types = m.layer_types;
      validate_lists(m, where);
    }
    const std::string own = differing_option(m, family);
    require(own.empty(), where, ".", own, ": ", name_of(m.model_type), " has ", differing_option(family, m),
            "; set it to that, or use model_type athanor, which accepts any value");
    require(m.rope_scaling.rope_type != RopeType::proportional, where, ".",
            "rope_scaling.rope_type: ", name_of(m.model_type),
            " does not support proportional; use model_type athanor");
    return;
  }
  require(m.qk_norm || m.qk_norm_elementwise_affine, where, ".",
          "qk_norm_elementwise_affine: false applies to the norms of qk_norm, which is false; set qk_norm to true");
  validate_lists(m, where);
  validate_values(m, where);
}

}  // namespace athanor
