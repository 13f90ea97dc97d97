// Assigns matrices to the ranks that orthogonalize them, and plans the communication. Each tensor of matrices has one
// owner among all ranks that hold parts of the weights (ProcessMesh::weights()), replicas included. Tensors are dealt
// out by cost, most expensive first, so that owners have about equal work. In a round one tensor of each owner is
// exchanged. Rounds of small tensors are processed together, as a group; computing a group overlaps receiving the next
// group's inputs and sending the last group's results.
#pragma once
#include <vector>

#include "optim/rule.h"

namespace athanor {

// A matrix within a tensor of the checkpoint: [rows, cols], starting `offset` elements after the tensor's start.
struct WholeMatrix {
  int64_t offset, rows, cols, stride;
  bool in_out;
  int64_t numbers;  // offset of its values in the unit's per-output state
  int64_t outputs() const { return in_out ? cols : rows; }
  int64_t inputs() const { return in_out ? rows : cols; }
  double cost() const;
  // View of this matrix within the flat tensor.
  Tensor in(const Tensor& flat) const { return {flat.at(offset), flat.dtype, {rows, cols}, stride}; }
};

// A checkpoint tensor, without padding, and its matrices: several if queries, keys and values are stored next to each
// other.
struct MatrixTensor {
  // Part of the tensor held by one rank along the axes that cut the tensor (Placement::cuts). Parts are sent one after
  // the other.
  struct Part {
    ParamStore::Range range;     // elements of the rank's unit
    int64_t at = 0;              // offset among the concatenated parts
    int first = 0;               // first of the ranks that hold the same part
    std::vector<Strips> strips;  // location of its elements in the tensor
  };
  size_t unit;
  int64_t numel;
  const Placement* placement;
  std::vector<WholeMatrix> matrices = {};
  std::vector<Part> parts = {};  // one per rank along the cuts; ranks with the same part share its `at`
  bool in_order = true;          // the concatenated parts equal the tensor
  double cost() const;
};

class MatrixOwners {
 public:
  // The ranks are those of ProcessMesh::weights(). numbers_state: index of the per-output state; -1 if the rule has
  // none. A group has as many rounds as keep each owner's tensors within `at_once` elements, at least one round.
  MatrixOwners(const ParamStore&, const Placed&, const ProcessMesh&, int64_t at_once, int numbers_state);

  size_t rounds() const { return rounds_.size(); }
  // Tensor that each rank processes in round j, or null.
  const std::vector<const MatrixTensor*>& round(size_t j) const { return rounds_[j]; }
  struct Group {
    size_t first, last;  // rounds [first, last)
  };
  const std::vector<Group>& groups() const { return groups_; }
  int ranks() const { return ranks_; }
  // Part of a tensor that rank k updates: a range of its unit's elements, and its offset among the concatenated parts.
  struct Held {
    ParamStore::Range range;
    int64_t at;
    int64_t size() const { return range.end - range.begin; }
    Tensor of(const Tensor& parts) const { return parts.slice(at, at + size()); }
  };
  Held held(const MatrixTensor&, int k) const;
  // True if rank k sends its part to the owner (or, as the owner, copies it locally). Rank k's coordinates must differ
  // from the owner's only along axes that cut or shard the tensor. Among ranks with the same part the sender is the one
  // with the owner's index along the cuts, or else the first.
  bool gives(const MatrixTensor&, int owner, int k) const;

  // Returns the communication of all rounds, with elements of `size` bytes: for each round the averages, then the
  // updates. Averages of the first group and updates of the last group are not overlapped.
  std::vector<MatrixExchange> exchanges(size_t size) const;
  // True if the averages of a tensor are distributed over several ranks.
  bool gathers() const { return gathers_; }

 private:
  const ParamStore& params_;
  RankGrid grid_;
  int ranks_;
  bool gathers_ = false;
  std::vector<MatrixTensor> tensors_;
  std::vector<std::vector<const MatrixTensor*>> rounds_;
  std::vector<Group> groups_;
};

}  // namespace athanor
