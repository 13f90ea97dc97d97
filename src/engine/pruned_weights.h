// PrunedWeights: weights that are zero and stay zero, by a mask that is a state of the pruned matrices: sharded, saved
// and resharded like the optimizer's states.
#pragma once
#include <string>
#include <vector>

#include "base/choices.h"
#include "param/param_store.h"

namespace athanor {

// Which matrices are pruned, and how: by the magnitude of masters, or by that of the weights that GEMMs read.
struct PruningOptions {
  PruneMethod method = PruneMethod::magnitude;
  double decay = 0;  // with srste
  PrunePattern pattern = PrunePattern::unstructured;
  PruneScope scope = PruneScope::layer;
  std::vector<std::string> exclude = {};  // names in files that match one of these patterns (* and ?)
};

// The mask of a pruned weight in files: "pruned.<weight>".
inline constexpr const char* kPrunedState = "pruned";

struct PrunedMatrix {
  std::string name;
  int64_t weights = 0, zeros = 0;  // zeros: of the mask
};

// By piece: which are pruned. Throws Error(usage) where a pattern of `exclude` fits no matrix, none is left, or 2:4
// groups do not lie in rows.
std::vector<bool> pruned_pieces(const ParamStore&, const PruningOptions&);

class PrunedWeights {
 public:
  // Throws what pruned_pieces() does.
  PrunedWeights(ParamStore&, PruningOptions);
  StateSpec state() const;  // [n] u8: 1 where a weight is pruned
  void planned();           // after the parameters' plan
  // After an update, before weights are gathered.
  void apply(Ctx&) const;
  // Chooses the mask anew: exactly round(sparsity n) weights of each matrix, or of all; ties by their order. `control`:
  // all ranks, in host memory; null: one rank. Then apply().
  void choose(Device&, const ProcessMesh&, Communicator* control, double sparsity) const;
  // All ranks, as choose().
  std::vector<PrunedMatrix> matrices(Device&, const ProcessMesh&, Communicator* control) const;

 private:
  struct Segment {
    size_t unit, piece, group;  // piece: among those that are pruned; group: of weights that are compared
    ParamStore::Range range;
    Tensor mask;
  };
  std::vector<Segment> segments() const;
  void choose_smallest(Device&, const ProcessMesh&, Communicator*, double sparsity) const;
  void choose_two_of_four(Device&) const;

  ParamStore& params_;
  PruningOptions options_;
  std::vector<bool> pieces_;      // which are pruned
  std::vector<size_t> group_of_;  // of each pruned piece
  std::vector<int64_t> sizes_;    // of each group, over all ranks
  size_t state_ = 0;
};

}  // namespace athanor
