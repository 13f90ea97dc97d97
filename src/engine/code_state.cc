#include "engine/code_state.h"

#include <algorithm>

namespace athanor {
namespace {

constexpr int64_t kLongestLine = 256;  // elements in a row of a part of a matrix, for kernels to work on many rows

}  // namespace

// On the first tensor in files of each parameter.
std::optional<StateSpec> CodeState::history() const {
  if (!recipe_.delayed_scaling()) return std::nullopt;
  StateSpec state{.name = kAmaxHistory, .dtype = DType::f32};
  for (const ParamStore::Piece& piece : params_.pieces()) {
    const ParamSpec& spec = params_.spec({piece.param});
    const bool has = spec.eight_bits && piece.slice == &spec.slices.front();
    state.pieces.push_back(has);
    state.sizes.push_back(has ? int64_t(kMatrices) * recipe_.delayed.history : 0);
  }
  return state;
}

void CodeState::gather_codes() {
  for (int id = 0; id < int(params_.specs().size()); ++id) {
    const LayerCodes layer(params_, recipe_, layer_of(params_, {id}));
    const OperandRule rule = layer.rule(Operand::forward_w);
    if (rule.scaling == Scaling::tensor && !rule.delayed && layer.same(Operand::forward_w, Operand::input_w))
      params_.gather_as_codes({id});
  }
}

void CodeState::plan(MemoryPlan& plan, bool keep_codes, bool statistics) {
  const auto& states = params_.state_specs();
  const auto at = std::ranges::find(states, kAmaxHistory, &StateSpec::name);
  if (at != states.end()) history_ = size_t(at - states.begin());
  const auto count = int64_t(params_.specs().size());
  if (statistics)
    plan.add(MemoryKind::inputs, "statistics of codes", DType::f64,
             {count, int64_t(kOperands), QuantizeStatistics::kNumbers}, &statistics_);
  if (history_) {
    plan.add(MemoryKind::inputs, "scales", DType::f32, {count, int64_t(kMatrices)}, &factors_);
    plan.add(MemoryKind::inputs, "largest magnitudes", DType::f32, {count, int64_t(kMatrices)}, &amax_);
  }
  if (recipe_.rule(Operand::forward_x).by_largest() || recipe_.rule(Operand::input_dy).by_largest())
    plan.add(MemoryKind::inputs, "largest magnitudes of inputs and gradients", DType::f32, {count, int64_t(kMatrices)},
             &largest_);
  if (!keep_codes) return;
  kept_.resize(size_t(count) * kOperands);
  for (int id = 0; id < int(count); ++id) {
    const ParamSpec& spec = params_.spec({id});
    const ParamStore::Unit& unit = *params_.units()[size_t(spec.unit)];
    const bool gathered = params_.has_codes({id});
    if (!spec.eight_bits || (unit.is_shard(unit.weights()) && !gathered)) continue;
    if (gathered) gathered_.push_back({id});
    const LayerCodes layer(params_, recipe_, layer_of(params_, {id}));
    for (const Operand operand : {Operand::forward_w, Operand::input_w}) {
      if (!layer.any(operand)) continue;
      if (operand == Operand::input_w && layer.same(operand, Operand::forward_w)) continue;
      Codes& codes = kept_[size_t(id) * kOperands + size_t(operand)];
      codes = layer.like(operand, params_.placement({id}).shape);
      const auto add = [&](const char* what, Tensor& t) {
        plan.add(MemoryKind::weights, cat(what, " of ", spec.name, " for ", name_of(operand)), t.dtype, t.shape, &t);
      };
      if (!gathered) add("codes", codes.data);
      add("scales", codes.scales);
      if (layer.rule(operand).codes == DType::f4_e2m1) add("scale", codes.global);
    }
  }
}

std::string CodeState::how_gathered() const {
  int64_t codes = 0, all = 0;
  for (int id = 0; id < int(params_.specs().size()); ++id)
    codes += params_.has_codes({id}), all += params_.spec({id}).eight_bits;
  if (codes == 0) return "ranks gather 16 bits";
  return cat("ranks gather codes of ", codes == all ? "all" : cat(codes));
}

Quantization CodeState::read() const {
  return {.statistics = {}, .factors = factors_, .amax = {}, .largest = largest_, .weights = kept_};
}
Quantization CodeState::collect() const {
  return {.statistics = statistics_, .factors = factors_, .amax = amax_, .largest = largest_, .weights = kept_};
}

void CodeState::make_codes(Ctx& c) const {
  for (int id = 0; id * kOperands < kept_.size(); ++id) {
    const Linear layer = layer_of(params_, {id});
    for (const Operand operand : {Operand::forward_w, Operand::input_w}) {
      const Codes& codes = kept_[size_t(id) * kOperands + size_t(operand)];
      if (codes.data) LayerCodes(params_, recipe_, layer).make(c, operand, params_.value({id}), codes);
    }
  }
  if (!gathered_.empty()) make_codes_of_shards(c);
}

// A weight's scale is that of all its elements, which no rank has: the largest magnitudes of the parts are compared,
// and each rank encodes its own part by the largest of all. The codes written while looking for the magnitudes are
// overwritten. Padding is zero and has no part in this.
void CodeState::make_codes_of_shards(Ctx& c) const {
  const auto count = int64_t(gathered_.size());
  const Buffer largest = c.alloc("largest magnitudes of weights", DType::f32, {count});
  c.run(Fill{.x = largest.t});
  const Buffer scale = c.alloc("scale of a part", DType::f32, {1, 1}), code = c.alloc("code", DType::f8_e4m3, {1, 1});
  const auto each_part = [&](const auto& run) {
    for (int64_t i = 0; i < count; ++i) {
      const Param p = gathered_[size_t(i)];
      const ParamStore::Unit& unit = *params_.units()[size_t(params_.spec(p).unit)];
      const ParamStore::Range range = params_.owned_lines(p);
      if (range.begin == range.end) continue;
      const int64_t size = range.end - range.begin;
      int64_t line = ParamStore::kAlign;
      while (line < kLongestLine && size % (2 * line) == 0) line *= 2;
      const Shape lines{size / line, line};
      const LayerCodes layer(params_, recipe_, layer_of(params_, p));
      const DType codes = layer.rule(Operand::forward_w).codes;
      Quantize op =
          layer.quantize(c, Operand::forward_w, {unit.part(unit.weights(), range).data, unit.weights().dtype, lines},
                         {.data = {unit.part(unit.codes, range).data, codes, lines}, .scales = scale.t});
      run(op, i);
    }
  };
  each_part([&](Quantize op, int64_t i) {
    op.statistics = {};
    op.amax = largest.t.slice(i, i + 1);
    c.run(op);
  });
  c.all_reduce(c.mesh.shards(), largest.t, Reduce::max);
  const bool counts = c.mesh.copies().rank() == 0;  // copies have the same weights
  each_part([&](Quantize op, int64_t i) {
    if (!counts) op.statistics = {};
    op.largest = largest.t.slice(i, i + 1);
    c.run(op);
  });
  // The scale that a matrix of the largest magnitude alone has; NaN where a weight on any rank is not finite.
  for (int64_t i = 0; i < count; ++i) {
    const Codes& kept = kept_[size_t(gathered_[size_t(i)].id) * kOperands + size_t(Operand::forward_w)];
    c.run(Quantize{.codes = {code.t.data, kept.data.dtype, {1, 1}},
                   .scales = kept.scales,
                   .x = {largest.t.at(i), DType::f32, {1, 1}},
                   .power_of_two = recipe_.power_of_two});
  }
  params_.gather_codes(c);
}

void CodeState::scale(Ctx& c, Tensor step_state) const {
  if (!history_) return;
  DelayedScales op{.amax = amax_,
                   .factors = factors_,
                   .state = step_state,
                   .length = recipe_.delayed.history,
                   .margin = recipe_.delayed.margin,
                   .power_of_two = recipe_.power_of_two};
  for (const Operand operand : {Operand::forward_x, Operand::forward_w, Operand::input_dy})  // in the order of Matrix
    op.codes.push_back(recipe_.rule(operand).codes);
  op.histories.assign(params_.specs().size(), {nullptr, DType::f32, {0}});
  const std::vector<ParamStore::Piece> pieces = params_.pieces();
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (!params_.keeps(*history_, i)) continue;
    const ParamStore::State& state = params_.units()[size_t(pieces[i].unit)]->states[*history_];
    const int64_t first = state.first_of(i);
    op.histories[size_t(pieces[i].param)] = state.t.slice(first, first + params_.state_specs()[*history_].sizes[i]);
  }
  c.run(op);
}

// Weights count in the step that reads them. What was counted of a step before it was given up stays counted.
void CodeState::begin_step(Ctx& c) const {
  scale(c, {});
  c.quantization = collect();
  c.quantization.statistics = {};
  make_codes(c);
}

void CodeState::end_step(Ctx& c, Tensor step_state) const {
  if (amax_) c.all_reduce(c.mesh.data_parallel(), amax_, Reduce::max);
  scale(c, step_state);
  c.quantization = collect();
  make_codes(c);
}

}  // namespace athanor
