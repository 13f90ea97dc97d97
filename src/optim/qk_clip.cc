// QK-clip [Kimi Team 2025, "Kimi K2", alg. 1]: scales the query and key weights of heads whose attention logits were
// too large, after the other rules have updated the weights. Independent of optimizers and models: query and key
// weights are those with ParamSpec::attention set.
#include <algorithm>

#include "base/rng.h"
#include "ops/qk_clip.h"
#include "optim/rule.h"

namespace athanor {
namespace {

class QkClipRule final : public UpdateRule {
 public:
  QkClipRule(double threshold, uint64_t seed) : threshold_(threshold), seed_(seed) {}
  std::vector<KeptState> states() const override { return {}; }
  // Reads the step's maximum attention logits over all ranks from Ctx::max_attention_logits.
  void run(size_t, Ctx& c, ParamStore& params, const Placed& placed, Tensor step_state) override {
    const auto pieces = params.pieces();
    QkClip clip{.parts = {}, .state = step_state, .threshold = threshold_, .seed = seed_};
    for (const UpdateRange& r : placed.ranges) {
      const ParamStore::Piece& piece = pieces[r.piece];
      const ParamSpec& spec = params.specs()[size_t(piece.param)];
      const int64_t ranks = params.tensor().ranks;
      clip.head_dim = spec.cut.whole;
      clip.heads = spec.cut.parts.at(0) / spec.cut.whole / ranks;
      clip.kv_heads = spec.cut.parts.at(1) / spec.cut.whole / ranks;
      const ParamStore::Unit& unit = *params.units()[r.unit];
      const Placement& place = params.placement({piece.param});
      const ParamStore::Range own =
          unit.owned(std::max(piece.offset, r.range.begin), std::min(piece.offset + piece.part->numel, r.range.end));
      if (own.begin >= own.end) continue;
      const int64_t start = piece.offset - piece.part->offset;  // offset of the weight in its unit
      clip.parts.push_back({.master = unit.masters_on_device(own),
                            .param = unit.value ? unit.values_on_device(own) : Tensor{},
                            .also = scaled_with(params, unit, r.piece, own),
                            .top = {c.max_attention_logits.at(spec.attention * clip.heads), DType::f32, {clip.heads}},
                            .range = {.first = own.begin - start,
                                      .cols = place.shape.rank > 1 ? place.shape[1] : 1,
                                      .columns = spec.in_out},
                            .stream = stream_of(cat("QK-clip of unit ", r.unit)),
                            .first = uint64_t(own.begin)});
    }
    if (!clip.parts.empty()) c.run(clip);
  }

 private:
  // Evaluations read the weight plus this state, so the state must be scaled, too.
  static Tensor scaled_with(const ParamStore& params, const ParamStore::Unit& unit, size_t piece,
                            ParamStore::Range range) {
    const std::vector<StateSpec>& states = params.state_specs();
    for (size_t s = 0; s < states.size(); ++s)
      if (states[s].name == kAverageMinusWeightState && params.keeps(s, piece)) return unit.states[s].on_device(range);
    return {};
  }

  double threshold_;
  uint64_t seed_;
};

}  // namespace

std::unique_ptr<UpdateRule> make_qk_clip(double threshold, uint64_t seed) {
  return std::make_unique<QkClipRule>(threshold, seed);
}

}  // namespace athanor
