// Which rank makes which matrix orthogonal, and what ranks send each other for it. Every tensor of matrices has one
// owner among all ranks that have parts of the weights (ProcessMesh::weights()), copies included; owners have equal
// costs as far as tensors can be dealt out, the longest first. In a round every owner works at one of its tensors: what
// the next round needs and what the last one has made are sent meanwhile.
#pragma once
#include <vector>

#include "optim/rule.h"

namespace athanor {

// A part of a tensor of the files that is a matrix of its own: [rows, cols], `offset` elements from the tensor's start.
struct WholeMatrix {
  int64_t offset, rows, cols, stride;
  bool in_out;
  int64_t numbers;  // start of its outputs' numbers in the unit's state
  int64_t outputs() const { return in_out ? cols : rows; }
  int64_t inputs() const { return in_out ? rows : cols; }
  double cost() const;
  // As a view of the whole tensor.
  Tensor in(const Tensor& flat) const { return {flat.at(offset), flat.dtype, {rows, cols}, stride}; }
};

// A tensor of the files, without the padding after it, and its matrices: several where one holds queries, keys and
// values side by side.
struct MatrixTensor {
  // What one of the ranks that have other parts of it (Placement::cuts) has. Tensors are sent as parts, one after the
  // other.
  struct Part {
    ParamStore::Range range;     // elements of the rank's unit
    int64_t at = 0;              // where it lies among the parts
    int first = 0;               // number of the first of these ranks that has this part
    std::vector<Strips> strips;  // where its elements lie in the tensor
  };
  size_t unit;
  int64_t numel;
  const Placement* placement;
  std::vector<WholeMatrix> matrices = {};
  std::vector<Part> parts = {};  // by rank along the cuts; those of several ranks that have the same are one part
  bool in_order = true;          // the parts, one after the other, are the tensor
  double cost() const;
};

class MatrixOwners {
 public:
  // The ranks are those of ProcessMesh::weights(). numbers_state: -1 where a rule keeps no state of outputs.
  MatrixOwners(const ParamStore&, const Placed&, const ProcessMesh&, int numbers_state);

  size_t rounds() const { return rounds_.size(); }
  // By rank: the tensor that it owns in a round, or null.
  const std::vector<const MatrixTensor*>& round(size_t j) const { return rounds_[j]; }
  int ranks() const { return ranks_; }
  // What rank number k of all updates of a tensor: a range of its unit's elements, and where that lies among the parts.
  struct Held {
    ParamStore::Range range;
    int64_t at;
    int64_t size() const { return range.end - range.begin; }
    Tensor of(const Tensor& parts) const { return parts.slice(at, at + size()); }
  };
  Held held(const MatrixTensor&, int k) const;
  // Whether rank k sends the owner what it holds (or keeps it there, as the owner): it differs from the owner along the
  // axes that cut or shard the tensor alone, and of ranks with the same part it is the one in the owner's place among
  // them, else the first.
  bool gives(const MatrixTensor&, int owner, int k) const;

  // What ranks send in the order of the calls, with elements of `size` bytes: of each round the averages, then the
  // updates; those of the first and the last have no products beside them.
  std::vector<MatrixExchange> exchanges(size_t size) const;
  // Whether averages are on several ranks.
  bool gathers() const { return gathers_; }

 private:
  const ParamStore& params_;
  RankGrid grid_;
  int ranks_;
  bool gathers_ = false;
  std::vector<MatrixTensor> tensors_;
  std::vector<std::vector<const MatrixTensor*>> rounds_;
};

}  // namespace athanor
