#include "model/model.h"

#include <fnmatch.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/int.h"

namespace athanor {
namespace {

// Returns the unit that holds the head's weight (with tied embeddings the unit of the embedding) and before it, if the
// model has weights after its last block, such as the final norm's gain, the unit that holds those.
std::vector<int> head_units(const Model& model) {
  const ParamStore& params = model.params();
  const int last = int(model.config().num_hidden_layers) + 1, head = params.spec(model.head()).unit;
  std::vector<int> units{head};
  if (head != last && last < int(params.units().size()) && !params.is_added(last)) units.insert(units.begin(), last);
  return units;
}

float score_scale(const ModelConfig& m) {
  if (m.attention_multiplier > 0) return float(m.attention_multiplier);
  const float scale = 1.0f / std::sqrt(float(m.head_dim));
  return has_latent_attention(m.model_type) ? float(scale * latent_score_factor(m.rope_scaling)) : scale;
}

}  // namespace

AttentionShape Model::attention_shape(int layer) const {
  const int64_t ranks = params_.tensor().ranks;
  return {.heads = config_.num_attention_heads / ranks,
          .kv_heads = std::max<int64_t>(1, config_.num_key_value_heads / ranks),  // replicated if fewer than ranks
          .head_dim = config_.head_dim,
          .window = window_of(config_, layer),
          .scale = score_scale(config_),
          .softcap = float(config_.attn_logit_softcapping),
          .sparse = sparse_pattern_of(config_, layer),
          .causal = !reads_images(config_)};
}

float Model::init_std() const { return float(config_.initializer_range / std::sqrt(config_.mup_width)); }
float Model::output_init_std() const { return init_std() / std::sqrt(2.0f * float(config_.num_hidden_layers)); }

float Model::std_of(const std::string& file_name, float otherwise) const {
  for (const auto& [pattern, std_dev] : config_.initializer_ranges)
    if (::fnmatch(pattern.c_str(), file_name.c_str(), 0) == 0) return float(std_dev);
  return otherwise;
}

void Model::require_patterns_used() const {
  for (const auto& range : config_.initializer_ranges) {
    const std::string& pattern = range.first;
    const auto fits = [&pattern](const HfSlice& slice) {
      return ::fnmatch(pattern.c_str(), slice.name.c_str(), 0) == 0;
    };
    const bool used = std::ranges::any_of(params_.specs(), [&fits](const ParamSpec& spec) {
      return spec.role != Role::vector && std::ranges::any_of(spec.slices, fits);
    });
    if (!used)
      throw Error(cat("model.initializer_ranges: \"", pattern,
                      "\" fits no matrix or embedding, such as model.layers.0.mlp.down_proj.weight; * stands for any "
                      "text"),
                  Exit::usage);
  }
}

Param Model::matrix(const std::string& name, int unit, const std::vector<std::pair<std::string, Shape>>& parts,
                    float std_dev, Cut cut, bool in_out, PartialGradient partial) {
  ParamSpec spec{.name = name,
                 .shape = parts[0].second,
                 .role = Role::matrix,
                 .unit = unit,
                 .init_std = std_of(parts[0].first, std_dev),
                 .cut = std::move(cut),
                 .partial = partial,
                 .in_out = in_out};
  spec.shape.dim[0] = 0;
  for (const auto& [file_name, shape] : parts) {
    CHECK(shape[1] == spec.shape[1], name, ": parts of different width");
    if (std_of(file_name, std_dev) != spec.init_std)
      throw Error(cat("model.initializer_ranges: ", parts[0].first, " and ", file_name,
                      " are one matrix in memory, drawn with one standard deviation; got ", spec.init_std, " and ",
                      std_of(file_name, std_dev), "; let one pattern fit both"),
                  Exit::usage);
    spec.slices.push_back({file_name, shape, spec.shape.numel()});
    spec.shape.dim[0] += shape[0];
  }
  return params_.declare(std::move(spec));
}

Param Model::vector(const std::string& name, int unit, const std::vector<std::pair<std::string, int64_t>>& parts,
                    float value, Cut cut, PartialGradient partial) {
  ParamSpec spec{.name = name,
                 .shape = {0},
                 .role = Role::vector,
                 .unit = unit,
                 .init_mean = value,
                 .cut = std::move(cut),
                 .partial = partial};
  for (const auto& [file_name, size] : parts) {
    spec.slices.push_back({file_name, {size}, spec.shape[0]});
    spec.shape.dim[0] += size;
  }
  return params_.declare(std::move(spec));
}

Param Model::table(const std::string& name, int unit, const HfSlice& slice, int64_t rows, const Cut& cut) {
  return params_.declare({.name = name,
                          .shape = {rows, slice.shape[slice.shape.rank - 1]},
                          .role = Role::embedding,
                          .unit = unit,
                          .init_std = std_of(slice.name, float(config_.initializer_range)),
                          .slices = {slice},
                          .cut = cut,
                          .read_by_rows = unit == 0});  // only the embedding's table
}

Param Model::vocab_table(const std::string& name, int unit, const std::string& file_name) {
  const int64_t v = config_.vocab_size;
  return table(name, unit, {file_name, {v, config_.hidden_size}}, round_up(v, kVocabMultiple),
               {.axis = 0, .parts = {v}, .padded_to = kVocabMultiple});
}

Param Model::vocab_bias(const std::string& name, int unit, const std::string& file_name) {
  const int64_t v = config_.vocab_size;
  return params_.declare({.name = name,
                          .shape = {round_up(v, kVocabMultiple)},
                          .role = Role::vector,
                          .unit = unit,
                          .slices = {{file_name, {v}}},
                          .cut = {.axis = 0, .parts = {v}, .padded_to = kVocabMultiple}});
}

Param Model::position_table(const std::string& name, int unit, const std::string& file_name) {
  const int64_t positions = config_.max_position_embeddings;
  return table(name, unit, {file_name, {positions, config_.hidden_size}}, positions, {});
}

Norm Model::layer_norm(const std::string& name, int unit, float gain) {
  const int64_t c = config_.hidden_size;
  return {NormKind::layer, vector(name + ".w", unit, {{name + ".weight", c}}, gain, {}, PartialGradient::of_rows),
          vector(name + ".b", unit, {{name + ".bias", c}}, 0, {}, PartialGradient::of_rows), float(config_.norm_eps)};
}

void Model::plan(MemoryPlan& plan, const Recipe& recipe, bool training, std::vector<StateSpec> states,
                 const Sharding& sharding) {
  params_.plan(plan, recipe, training, std::move(states), sharding);
  if (has_rope_)
    plan.add(MemoryKind::constants, "rotary table", DType::f32, {config_.max_position_embeddings, rotary_dim(config_)},
             &rope_table_);
  if (!config_.norm_elementwise_affine || (config_.qk_norm && !config_.qk_norm_elementwise_affine))
    plan.add(MemoryKind::constants, "gains of norms", DType::f32, {std::max(config_.hidden_size, config_.head_dim)},
             &ones_);
}

void Model::init_constants(Device& device) {
  if (ones_) {
    const std::vector<float> ones(size_t(ones_.numel()), 1.0f);
    device.copy(ones_.data, ones.data(), ones_.bytes(), Stream::compute);
    device.sync();
  }
  if (!has_rope_) return;
  const std::vector<float> table = athanor::rope_table(config_, config_.max_position_embeddings);
  device.copy(rope_table_.data, table.data(), rope_table_.bytes(), Stream::compute);
  device.sync();
}

std::string to_text(const Recompute& recompute) {
  using G = Recompute::Granularity;
  if (recompute.granularity == G::none) return "none";
  if (recompute.granularity == G::selective) return "selective";
  return recompute.every == 1 ? "full" : cat("full in 1 block of ", recompute.every, ", else selective");
}

Var forward(Model& model, Ctx& c, const Batch& batch, const Recompute& recompute) {
  return forward_part(model, c, batch, recompute, ModelPart::whole(model), {});
}

Var forward_part(Model& model, Ctx& c, const Batch& batch, const Recompute& recompute, const ModelPart& part, Var in) {
  ParamStore& params = model.params();
  const bool selective = recompute.granularity != Recompute::Granularity::none;
  c.selective = selective;
  const std::vector<int64_t>& skips = model.config().skip_from;
  Taps taps{.embedding = {}, .blocks = std::vector<Tap>(skips.size()), .value_rows = {}, .first_values = {}};
  if (adds_first_values(model.config(), 1)) taps.first_values = values_to_come();
  Var h = std::move(in);
  if (part.embeds) {
    params.use(c, 0);
    h = model.embed(c, batch, taps);
    if (const float p = hidden_dropout(c); p > 0)
      h = drop_path({c, params}, {}, std::move(h), DropBy::element, p, "embedding");
    params.done(c, 0);
    if (!model.config().x0_lambdas.empty()) h = set_tap(c, std::move(h), taps.embedding);
  }
  for (int l = part.first; l < part.end; ++l) {
    params.use(c, l + 1);
    const bool whole = is_recomputed_whole(recompute, l);
    Block block = [&model, &batch, taps, l, keep = whole || !selective](Ctx& cc, Var x) {
      cc.selective = !keep;
      return model.block(cc, l, std::move(x), batch, taps);
    };
    h = whole ? checkpoint(c, std::move(block), std::move(h)) : block(c, std::move(h));
    params.done(c, l + 1);
    if (std::ranges::count(skips, l) > 0) h = set_tap(c, std::move(h), taps.blocks[size_t(l)]);
  }
  c.selective = selective;
  if (!part.ends) return h;
  for (const int unit : head_units(model)) params.use_last(c, unit);
  return model.final_norm(c, std::move(h), taps);
}

void release_head(Model& model, Ctx& c) {
  for (const int unit : head_units(model)) model.params().release(unit);
  CHECK(!c.recording(), "backward still needs the head's weights");
}

}  // namespace athanor
