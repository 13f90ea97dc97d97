#include "optim/matrix_owners.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "param/param_store.h"

namespace athanor {
namespace {

// The matrices of a weight that is cut along columns are those that the ranks of a tensor-parallel group would cut.
std::vector<WholeMatrix> matrices_of(const ParamSpec& spec, const Shape& shape, int64_t numbers) {
  const std::vector<int64_t> columns = spec.cut.axis == 1 ? spec.cut.parts : std::vector<int64_t>{shape[1]};
  std::vector<WholeMatrix> all;
  int64_t at = 0;
  for (const int64_t cols : columns) {
    all.push_back({at, shape[0], cols, shape[1], spec.in_out, numbers + (spec.in_out ? at : 0)});
    at += cols;
  }
  return all;
}

// Each tensor goes to the owner with the least to do so far, the most expensive first. The owner with the most is the
// first one: the plan of rank 0 is that of the slowest.
std::vector<std::vector<const MatrixTensor*>> deal_out(const std::vector<MatrixTensor>& tensors, int ranks) {
  std::vector<const MatrixTensor*> order;
  for (const MatrixTensor& t : tensors) order.push_back(&t);
  std::ranges::stable_sort(order, std::greater{}, [](const MatrixTensor* t) { return t->cost(); });
  struct Owner {
    double load = 0;
    std::vector<const MatrixTensor*> tensors = {};
  };
  std::vector<Owner> owners(static_cast<size_t>(ranks));
  for (const MatrixTensor* t : order) {
    Owner& least = *std::ranges::min_element(owners, {}, &Owner::load);
    least.load += t->cost();
    least.tensors.push_back(t);
  }
  std::ranges::stable_sort(owners, std::greater{}, &Owner::load);
  size_t most = 0;
  for (const Owner& owner : owners) most = std::max(most, owner.tensors.size());
  std::vector<std::vector<const MatrixTensor*>> rounds(most, std::vector<const MatrixTensor*>(owners.size()));
  for (size_t k = 0; k < owners.size(); ++k)
    for (size_t j = 0; j < owners[k].tensors.size(); ++j) rounds[j][k] = owners[k].tensors[j];
  return rounds;
}

}  // namespace

// Of an iteration's products: two with both sides, one of the short sides alone.
double WholeMatrix::cost() const {
  const auto side = double(std::min(rows, cols)), other = double(std::max(rows, cols));
  return side * side * (2 * other + side);
}

double MatrixTensor::cost() const {
  return std::transform_reduce(matrices.begin(), matrices.end(), 0.0, std::plus{}, std::mem_fn(&WholeMatrix::cost));
}

MatrixOwners::MatrixOwners(const ParamStore& params, const Placed& placed, int ranks, int numbers_state)
    : params_(params), ranks_(ranks), shards_(params.shards()) {
  CHECK(ranks_ % shards_ == 0, ranks_, " ranks in copies of ", shards_);
  const auto pieces = params.pieces();
  for (const UpdateRange& r : placed.ranges) {
    const ParamStore::Piece& piece = pieces[r.piece];
    const Shape& shape = piece.slice->shape;
    const int64_t numbers =
        numbers_state < 0 ? 0 : params.units()[r.unit]->states[size_t(numbers_state)].first_of(r.piece);
    tensors_.push_back({r.unit,
                        {piece.offset, piece.offset + shape.numel()},
                        matrices_of(params.specs()[size_t(piece.param)], shape, numbers)});
  }
  rounds_ = deal_out(tensors_, ranks);
}

ParamStore::Range MatrixOwners::held(const MatrixTensor& t, int k) const {
  const int64_t share = params_.units()[t.unit]->layout.numel / shards_, first = share * (k % shards_);
  const int64_t begin = std::max(t.range.begin, first);
  return {begin, std::max(begin, std::min(t.range.end, first + share))};
}

std::vector<MatrixExchange> MatrixOwners::exchanges(size_t size) const {
  std::vector<MatrixExchange> all;
  if (ranks_ == 1) return all;
  for (size_t j = 0; j < rounds(); ++j) {
    MatrixExchange averages{.exposed = j == 0}, updates{.exposed = j + 1 == rounds()};
    for (int owner = 0; owner < ranks_; ++owner) {
      const MatrixTensor* t = rounds_[j][size_t(owner)];
      for (int k = 0; t && k < ranks_; ++k) {
        const ParamStore::Range range = held(*t, k);
        const int64_t bytes = (range.end - range.begin) * int64_t(size);
        if (k == owner || bytes == 0) continue;
        if (copy_of(k) == copy_of(owner)) averages.parts.push_back({k, owner, bytes});
        updates.parts.push_back({owner, k, bytes});
      }
    }
    if (gathers()) all.push_back(std::move(averages));
    all.push_back(std::move(updates));
  }
  return all;
}

}  // namespace athanor
