// Which rank makes which matrix orthogonal, and what ranks send each other for it. Every tensor of matrices has one
// owner among all data-parallel ranks, copies included; owners have equal costs as far as tensors can be dealt out, the
// longest first. In a round every owner works at one of its tensors: what the next round needs and what the last one
// has made are sent meanwhile.
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
  size_t unit;
  ParamStore::Range range;  // elements of the unit
  std::vector<WholeMatrix> matrices = {};
  int64_t numel() const { return range.end - range.begin; }
  double cost() const;
};

class MatrixOwners {
 public:
  // `ranks`: all that share a batch. Without states of outputs `numbers_state` is -1.
  MatrixOwners(const ParamStore&, const Placed&, int ranks, int numbers_state);

  size_t rounds() const { return rounds_.size(); }
  // By rank: the tensor that it owns in a round, or null.
  const std::vector<const MatrixTensor*>& round(size_t j) const { return rounds_[j]; }
  int ranks() const { return ranks_; }
  int shards() const { return shards_; }
  // Rank number k of all; ranks of a copy have consecutive numbers.
  int copy_of(int k) const { return k / shards_; }
  // What rank k updates of a tensor; of its unit's elements, empty where begin is end.
  ParamStore::Range held(const MatrixTensor&, int k) const;

  // What ranks send in the order of the calls, with elements of `size` bytes: of each round the averages, then the
  // updates; those of the first and the last have no products beside them.
  std::vector<MatrixExchange> exchanges(size_t size) const;
  // Whether averages are on several ranks.
  bool gathers() const { return shards_ > 1; }

 private:
  const ParamStore& params_;
  int ranks_, shards_;
  std::vector<MatrixTensor> tensors_;
  std::vector<std::vector<const MatrixTensor*>> rounds_;
};

}  // namespace athanor
