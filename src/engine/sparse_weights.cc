#include "engine/sparse_weights.h"

namespace athanor {

SparseWeights::SparseWeights(ParamStore& params, const PruningOptions& options)
    : params_(params), pieces_(pruned_pieces(params, options)), decay_(float(options.decay)) {
  const std::vector<ParamStore::Piece> pieces = params_.pieces();
  for (size_t i = 0; i < pieces.size(); ++i)
    if (const Param p{pieces[i].param}; pieces_[i])
      params_.read_two_of_four(p, size_t(pieces[i].slice - params_.spec(p).slices.data()));
}

void SparseWeights::decay(Ctx& c, Tensor step_state) const {
  if (decay_ == 0) return;
  const std::vector<ParamStore::Piece> pieces = params_.pieces();
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (!pieces_[i]) continue;
    const ParamStore::Unit& unit = *params_.units()[size_t(pieces[i].unit)];
    const ParamStore::Range mine = unit.owned(pieces[i].offset, pieces[i].offset + pieces[i].slice->shape.numel());
    if (mine.begin < mine.end)
      c.run(DecayPruned{.grad = unit.part(unit.grad, mine),
                        .w = unit.part(unit.weights(), mine),
                        .state = step_state,
                        .decay = decay_});
  }
}

}  // namespace athanor
