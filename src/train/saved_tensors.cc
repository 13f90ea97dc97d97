#include "train/saved_tensors.h"

#include <algorithm>

namespace athanor {

std::vector<SavedTensor> saved_tensors(const ParamStore& params) {
  const std::vector<ParamStore::Piece> pieces = params.pieces();
  const std::vector<StateSpec>& states = params.state_specs();
  const auto at = std::ranges::find(states, kGlobalWeightState, &StateSpec::name);
  const int global = at == states.end() ? -1 : int(at - states.begin());
  const int workers = params.worker().workers;
  std::vector<SavedTensor> all;
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (!params.is_saved(pieces[i])) continue;
    const std::string& weight = pieces[i].slice->name;
    const auto of_each = [&](int state, const std::string& name) {
      for (int k = 0; k < workers; ++k)
        all.push_back({i, state, k, false, workers > 1 ? cat("worker", k, ".", name) : name});
    };
    const bool has_global = global >= 0 && params.keeps(size_t(global), i);
    all.push_back({i, has_global ? global : -1, -1, true, weight});
    if (has_global) of_each(-1, cat("local_weight.", weight));
    for (int s = 0; s < int(states.size()); ++s) {
      if (s == global || !params.keeps(size_t(s), i)) continue;
      const std::string name = cat(states[size_t(s)].name, ".", weight);
      if (states[size_t(s)].of_all_workers)
        all.push_back({i, s, -1, false, name});
      else
        of_each(s, name);
    }
  }
  return all;
}

DType dtype_of(const ParamStore& params, const std::vector<ParamStore::Piece>& pieces, const SavedTensor& t) {
  return t.state < 0 ? params.saved_dtype(pieces[t.piece]) : params.state_specs()[size_t(t.state)].dtype;
}

Shape shape_of(const ParamStore& params, const std::vector<ParamStore::Piece>& pieces, const SavedTensor& t) {
  const Shape& whole = pieces[t.piece].slice->shape;
  return t.state < 0 ? whole : params.state_specs()[size_t(t.state)].shape_of(t.piece, whole);
}

int64_t bytes_of(const ParamStore& params, const std::vector<ParamStore::Piece>& pieces, const SavedTensor& t) {
  return shape_of(params, pieces, t).numel() * int64_t(size_of(dtype_of(params, pieces, t)));
}

}  // namespace athanor
