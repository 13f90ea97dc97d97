#include "engine/stage.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "pipeline/layout.h"

namespace athanor {
namespace {

// Multiplications of a token's forward pass: weights of a block, and attention to preceding tokens [Kaplan et al. 2020,
// "Scaling Laws for Neural Language Models", table 1].
PartCosts costs_of(const Model& model, int64_t seq_length) {
  const ModelConfig& m = model.config();
  PartCosts costs{.block = 0.5 * double(seq_length * m.num_attention_heads * (m.head_dim + value_dim(m))),
                  .head = double(m.vocab_size * m.hidden_size)};
  const auto& units = model.params().units();
  for (int unit = 1; unit >= 0; unit = units[size_t(unit)]->next_together)
    for (const int id : units[size_t(unit)]->params) {
      const ParamSpec& spec = model.params().specs()[size_t(id)];
      if (spec.role == Role::matrix)
        costs.block += double(spec.shape.numel()) * double(spec.chosen) / double(spec.experts);
    }
  return costs;
}

}  // namespace

std::vector<int> layout_of(const PipelineOptions& o, int stages, const Model& model, int64_t seq_length) {
  const auto blocks = int(model.config().num_hidden_layers);
  if (o.layout.empty()) return balanced_layout(blocks, stages * o.chunks, costs_of(model, seq_length));
  CHECK(int(o.layout.size()) == stages * o.chunks && *std::ranges::min_element(o.layout) > 0 &&
            std::accumulate(o.layout.begin(), o.layout.end(), 0) == blocks,
        o.layout.size(), " parts for ", stages, " stages of ", o.chunks, " chunks and ", blocks, " blocks");
  return o.layout;
}

Stage::Stage(const PipelineOptions& options, int stages, int stage, const Model& model, int64_t seq_length)
    : options_(stages > 1 ? options : PipelineOptions{}), stages_(stages), stage_(stage) {
  const std::vector<int> layout = layout_of(options_, stages, model, seq_length);
  int first = 0;
  for (size_t i = 0; i < layout.size(); ++i) {
    parts_.push_back({first, first + layout[i], i == 0, i + 1 == layout.size()});
    first += layout[i];
  }
  set_micro_batches(1);
}

void Stage::set_micro_batches(int64_t count) {
  program_ = make_program(options_.schedule, {stages_, options_.chunks, count});
  frames_ = assign_frames(actions(), options_.chunks);
}

bool Stage::leaves(size_t i) const {
  const Actions& list = actions();
  return !frames_.ends[i] && i + 1 < list.size() &&
         (list[i + 1].chunk != list[i].chunk || list[i + 1].micro_batch != list[i].micro_batch);
}

bool Stage::ever_leaves(int chunk, StageAction::Kind kind) const {
  for (size_t i = 0; i < actions().size(); ++i)
    if (actions()[i].chunk == chunk && actions()[i].kind == kind && leaves(i)) return true;
  return false;
}

StageUnits Stage::units(const Model& model) const {
  StageUnits units{.stages = stages_, .stage = stage_, .stage_of = {}};
  if (stages_ == 1) return units;
  const size_t count = model.params().units().size();
  const PipelineShape& shape = program_.shape;
  units.head = shape.stage_of(shape.parts() - 1);
  units.stage_of.assign(count, units.head);
  units.stage_of[0] = 0;
  for (size_t p = 0; p < parts_.size(); ++p)
    for (int l = parts_[p].first; l < parts_[p].end; ++l) units.stage_of[size_t(l) + 1] = shape.stage_of(int(p));
  for (size_t u = 0; u < count; ++u)
    if (const int together = model.params().units()[u]->next_together; together >= 0)
      units.stage_of[size_t(together)] = units.stage_of[u];
  if (units.head != 0 && model.params().spec(model.head()).unit == 0) units.tied = 0;
  if (model.router_bias()) units.on_all = model.params().spec(model.router_bias()).unit;
  return units;
}

std::string Stage::phase(const char* name, int chunk) const {
  return options_.chunks == 1 ? name : cat(name, ", chunk ", chunk);
}

}  // namespace athanor
