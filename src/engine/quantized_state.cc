#include "engine/quantized_state.h"

#include <algorithm>

#include "nn/linear_gemms.h"

namespace athanor {
// The history belongs to the first of a parameter's tensors in files.
std::optional<StateSpec> QuantizedState::history() const {
  if (!recipe_.delayed_scaling()) return std::nullopt;
  StateSpec state{.name = kAmaxHistory, .dtype = DType::f32};
  for (const ParamStore::Piece& piece : params_.pieces()) {
    const ParamSpec& spec = params_.spec({piece.param});
    const bool has = spec.low_precision && piece.slice == &spec.slices.front();
    state.pieces.push_back(has);
    state.sizes.push_back(has ? int64_t(kMatrices) * recipe_.delayed.history : 0);
  }
  return state;
}

void QuantizedState::gather_quantized() {
  for (int id = 0; id < int(params_.specs().size()); ++id) {
    const LayerQuantization layer(params_, recipe_, layer_of(params_, {id}));
    if (layer.any(Operand::forward_w) && layer.same(Operand::forward_w, Operand::input_w) &&
        !params_.spec({id}).read_by_rows)
      params_.gather_quantized({id});
  }
}

void QuantizedState::plan(MemoryPlan& plan, bool keep_quantized, bool statistics, bool sequential) {
  const auto& states = params_.state_specs();
  const auto at = std::ranges::find(states, kAmaxHistory, &StateSpec::name);
  if (at != states.end()) history_ = size_t(at - states.begin());
  const auto count = int64_t(params_.specs().size());
  if (statistics)
    plan.add(MemoryKind::inputs, "quantization statistics", DType::f64,
             {count, int64_t(kOperands), QuantizeStatistics::kNumbers}, &statistics_);
  if (history_) {
    plan.add(MemoryKind::inputs, "scales", DType::f32, {count, int64_t(kMatrices)}, &factors_);
    plan.add(MemoryKind::inputs, "amax of the step", DType::f32, {count, int64_t(kMatrices)}, &step_amax_);
  }
  if (sequential && (recipe_.rule(Operand::forward_x).by_amax() || recipe_.rule(Operand::input_dy).by_amax()))
    plan.add(MemoryKind::inputs, "amax of inputs and gradients", DType::f32, {count, int64_t(kMatrices)}, &amax_);
  if (!keep_quantized) return;
  kept_.resize(size_t(count) * kOperands);
  for (int id = 0; id < int(count); ++id) {
    const ParamSpec& spec = params_.spec({id});
    const ParamStore::Unit& unit = *params_.units()[size_t(spec.unit)];
    const bool gathered = params_.has_quantized({id});
    if (!spec.low_precision || unit.layout.numel == 0 || (unit.is_shard(unit.weights()) && !gathered)) continue;
    const LayerQuantization layer(params_, recipe_, layer_of(params_, {id}));
    if (gathered) {
      gathered_.push_back(
          {.weight = {id},
           .whole = {.matrix = params_.placement({id}).shape, .blocks = layer.blocks(Operand::forward_w)},
           .first = found_,
           .four_bits = layer.rule(Operand::forward_w).quantized == DType::f4_e2m1});
      found_ = gathered_.back().all() + gathered_.back().four_bits;
    }
    for (const Operand operand : {Operand::forward_w, Operand::input_w}) {
      if (!layer.any(operand)) continue;
      if (operand == Operand::input_w && layer.same(operand, Operand::forward_w)) continue;
      QuantizedTensor& quantized = kept_[size_t(id) * kOperands + size_t(operand)];
      quantized = layer.like(operand, params_.placement({id}).shape);
      const auto add = [&](const char* what, Tensor& t) {
        plan.add(MemoryKind::weights, cat(what, " of ", spec.name, " for ", name_of(operand)), t.dtype, t.shape, &t);
      };
      if (!gathered) add("quantized", quantized.data);
      add("scales", quantized.scales);
      if (layer.rule(operand).quantized == DType::f4_e2m1) add("scale", quantized.global);
    }
  }
}

std::string QuantizedState::how_gathered() const {
  int64_t quantized = 0, all = 0;
  for (int id = 0; id < int(params_.specs().size()); ++id)
    quantized += params_.has_quantized({id}), all += params_.spec({id}).low_precision;
  if (quantized == 0) return "ranks gather 16 bits";
  return cat("ranks gather quantized weights of ", quantized == all ? "all" : cat(quantized));
}

Quantization QuantizedState::read() const {
  return {.statistics = {}, .factors = factors_, .step_amax = {}, .amax = amax_, .weights = kept_};
}
Quantization QuantizedState::collect() const {
  return {.statistics = statistics_, .factors = factors_, .step_amax = step_amax_, .amax = amax_, .weights = kept_};
}

bool QuantizedState::counts(Param weight, Matrix matrix, const ProcessMesh& mesh) const {
  const Linear layer = layer_of(params_, weight);
  const Shared how = shared(params_, layer);
  const bool cut = matrix == Matrix::w   ? how != Shared::no
                   : matrix == Matrix::x ? how == Shared::by_inputs
                                         : how == Shared::by_outputs;
  // Each rank counts its own shard of a weight that is gathered quantized.
  const bool other_rows = matrix != Matrix::w || params_.has_quantized(weight);
  // The first stage quantizes a tied table, too.
  const StageUnits& stages = params_.stages();
  const bool reads = params_.spec(weight).unit != stages.tied || stages.stage == stages.head;
  return reads && (cut || mesh.tensor().rank() == 0) && (other_rows || mesh.data_parallel().rank() == 0);
}

void QuantizedState::quantize_weights(Ctx& c) const {
  for (int id = 0; id * kOperands < kept_.size(); ++id) {
    const Linear layer = layer_of(params_, {id});
    for (const Operand operand : {Operand::forward_w, Operand::input_w}) {
      const QuantizedTensor& quantized = kept_[size_t(id) * kOperands + size_t(operand)];
      if (quantized.data) LayerQuantization(params_, recipe_, layer).make(c, operand, params_.value({id}), quantized);
    }
  }
  if (!gathered_.empty()) quantize_shards(c);
}

// Scales follow from the amax of whole blocks, but a rank may have only parts of a block: ranks max-reduce the amax of
// their parts, then each rank quantizes its own part.
void QuantizedState::quantize_shards(Ctx& c) const {
  const Buffer found = c.alloc("amax of weights", DType::f32, {found_});
  const auto amax_of = [&](const Gathered& g) { return found.t.slice(g.first, g.first + g.whole.grid().numel()); };
  const auto of_all = [&](const Gathered& g) { return g.four_bits ? found.t.slice(g.all(), g.all() + 1) : Tensor{}; };
  const auto each_part = [&](const auto& run) {
    for (const Gathered& g : gathered_) {
      const ParamStore::Unit& unit = *params_.units()[size_t(params_.spec(g.weight).unit)];
      const ParamStore::Range range = params_.owned_lines(g.weight);
      if (range.begin == range.end) continue;
      MatrixPart part = g.whole;
      part.first = range.begin - params_.offset(g.weight);
      run(g, part, unit.part(unit.weights(), range), unit.part(unit.quantized, range));
    }
  };
  c.run(Fill{.x = found.t});
  each_part([&](const Gathered& g, const MatrixPart& part, const Tensor& x, const Tensor&) {
    c.run(AmaxOfPart{.amax = amax_of(g).view(part.grid()), .of_all = of_all(g), .x = x, .part = part});
  });
  c.all_reduce(c.mesh.shards(), found.t, Reduce::max);

  const bool counts = c.mesh.copies().rank() == 0;  // ranks of copies() have the same weights
  each_part([&](const Gathered& g, const MatrixPart& part, const Tensor& x, const Tensor& quantized) {
    const LayerQuantization layer(params_, recipe_, layer_of(params_, g.weight));
    const Quantize whole = layer.quantize(c, Operand::forward_w, {}, {});
    c.run(QuantizePart{.quantized = {quantized.data, layer.rule(Operand::forward_w).quantized, quantized.shape},
                       .x = x,
                       .amax = amax_of(g).view(part.grid()),
                       .of_all = of_all(g),
                       .factor = whole.factor,
                       .statistics = counts ? whole.statistics : Tensor{},
                       .part = part,
                       .power_of_two = whole.power_of_two});
  });
  // Computes the scales by quantizing a matrix that consists of the amax values, one row per block.
  const Buffer quantized = c.alloc("amax of blocks", DType::u8, {found_});
  for (const Gathered& g : gathered_) {
    const LayerQuantization layer(params_, recipe_, layer_of(params_, g.weight));
    QuantizedTensor kept = kept_[size_t(g.weight.id) * kOperands + size_t(Operand::forward_w)];
    const Shape rows{g.whole.grid().numel(), 1};
    kept.data = {quantized.t.data, kept.data.dtype, rows};
    kept.scales = kept.scales.view(rows);
    Quantize op = layer.quantize(c, Operand::forward_w, amax_of(g).view(rows), kept);
    op.statistics = {};
    if (g.whole.blocks != Blocks{}) op.blocks = {1, g.four_bits ? 16 : 0};
    c.run(op);
  }
  params_.gather_quantized(c);
}

void QuantizedState::scale(Ctx& c, Tensor step_state) const {
  if (!history_) return;
  DelayedScales op{.amax = step_amax_,
                   .factors = factors_,
                   .state = step_state,
                   .length = recipe_.delayed.history,
                   .margin = recipe_.delayed.margin,
                   .power_of_two = recipe_.power_of_two};
  for (const Operand operand : {Operand::forward_x, Operand::forward_w, Operand::input_dy})  // in the order of Matrix
    op.quantized.push_back(recipe_.rule(operand).quantized);
  op.histories.assign(params_.specs().size(), {nullptr, DType::f32, {0}});
  const std::vector<ParamStore::Piece> pieces = params_.pieces();
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (!params_.keeps(*history_, i) || !params_.here(size_t(pieces[i].unit))) continue;
    const ParamStore::State& state = params_.units()[size_t(pieces[i].unit)]->states[*history_];
    const int64_t first = state.first_of(i);
    op.histories[size_t(pieces[i].param)] = state.t.slice(first, first + params_.state_specs()[*history_].sizes[i]);
  }
  c.run(op);
}

// Statistics of weights count in the step that reads them. Statistics counted before a step was discarded are kept.
void QuantizedState::begin_step(Ctx& c) const {
  scale(c, {});
  c.quantization = collect();
  c.quantization.statistics = {};
  quantize_weights(c);
}

void QuantizedState::end_step(Ctx& c, Tensor step_state) const {
  if (step_amax_) {
    c.all_reduce(c.mesh.data_parallel(), step_amax_, Reduce::max);
    c.tensor_sum(step_amax_, Reduce::max);
    // The first stage also has the history of a head that is tied to its embedding, and saves it.
    if (params_.stages().tied >= 0) c.all_reduce(c.mesh.stages(), step_amax_, Reduce::max);
  }
  scale(c, step_state);
  c.quantization = collect();
  quantize_weights(c);
}

}  // namespace athanor
