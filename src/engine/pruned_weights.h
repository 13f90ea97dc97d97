// PrunedWeights: keeps pruned weights and their averages at zero. The mask is a state of the pruned matrices: sharded,
// saved and resharded like optimizer states.
#pragma once
#include <string>
#include <vector>

#include "base/choices.h"
#include "param/param_store.h"

namespace athanor {

// Which matrices are pruned, and how: by the magnitude of master weights or, with srste, of the weights that GEMMs
// read.
struct PruningOptions {
  PruneMethod method = PruneMethod::magnitude;
  double decay = 0;  // strength of srste's decay
  PrunePattern pattern = PrunePattern::unstructured;
  PruneScope scope = PruneScope::layer;
  std::vector<std::string> exclude = {};  // names in files that match one of these patterns (* and ?) are not pruned
};

// Name prefix of a pruned weight's mask in files: "pruned.<weight>".
inline constexpr const char* kPrunedState = "pruned";

struct PrunedMatrix {
  std::string name;
  int64_t weights = 0, zeros = 0;  // zeros: number of pruned weights in the mask
};

// Returns for each piece whether it is pruned. Throws Error(usage) if a pattern of `exclude` matches no matrix, if no
// matrix is left to prune, or if groups of 2:4 sparsity do not fit within rows.
std::vector<bool> pruned_pieces(const ParamStore&, const PruningOptions&);

class PrunedWeights {
 public:
  // Throws the same errors as pruned_pieces().
  PrunedWeights(ParamStore&, PruningOptions);
  StateSpec state() const;  // [n] u8: 1 where a weight is pruned
  void planned();           // call after the parameters are planned
  // Applies the mask; call after an update, before weights are gathered.
  void apply(Ctx&) const;
  // Chooses a new mask and applies it: prunes exactly round(sparsity n) weights of each matrix, or of all matrices
  // together; among equal magnitudes the first ones. `control`: all ranks, over host memory; null: one rank.
  void choose(Device&, const ProcessMesh&, Communicator* control, double sparsity) const;
  // All ranks call it together, like choose().
  std::vector<PrunedMatrix> matrices(Device&, const ProcessMesh&, Communicator* control) const;

 private:
  struct Segment {
    size_t unit, piece, group;  // piece: index among pruned pieces; group: the weights that share one threshold
    bool counts;                // true on one of the ranks that have the same segment
    ParamStore::Range range;
    Tensor mask;
  };
  std::vector<Segment> segments(const ProcessMesh&) const;
  void choose_smallest(Device&, const ProcessMesh&, Communicator*, double sparsity) const;
  void choose_two_of_four(Device&, const ProcessMesh&) const;

  ParamStore& params_;
  PruningOptions options_;
  std::vector<bool> pieces_;      // true for pruned pieces
  std::vector<size_t> group_of_;  // group of each pruned piece
  std::vector<int64_t> sizes_;    // weights per group, over all ranks
  size_t state_ = 0;
  std::vector<size_t> averages_;  // states that are averages of the weights, or their difference from the weights
};

}  // namespace athanor
