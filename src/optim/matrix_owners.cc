#include "optim/matrix_owners.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "param/param_store.h"

namespace athanor {
namespace {

// A weight that tensor parallelism cuts along columns holds one matrix per column group (e.g. queries, keys, values).
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

// Sets the parts of a tensor that the ranks along Placement::cuts hold.
void set_parts(MatrixTensor& tensor, const ParamStore& params, const ParamStore::Piece& piece, const RankGrid& grid) {
  const ParamSpec& spec = params.specs()[size_t(piece.param)];
  const auto number = size_t(piece.slice - spec.slices.data());
  int64_t at = 0;
  const int parts = grid.size(tensor.placement->cuts);
  for (int part = 0; part < parts; ++part) {
    const Placement::Slice slice = place_part(spec, *tensor.placement, parts, part).slices[number];
    const int64_t begin = params.offset({piece.param}) + slice.offset;
    const auto same = std::ranges::find(tensor.parts, slice.strips, &MatrixTensor::Part::strips);
    const bool is_first = same == tensor.parts.end();
    tensor.parts.push_back(
        {{begin, begin + slice.numel}, is_first ? at : same->at, is_first ? part : same->first, slice.strips});
    if (!is_first) continue;
    for (const Strips& s : slice.strips) tensor.in_order = tensor.in_order && s.count == 1 && s.at == at + s.part_at;
    at += slice.numel;
  }
  CHECK(at == tensor.numel, piece.slice->name, ": parts have ", at, " elements of ", tensor.numel);
}

// Deals out tensors, most expensive first, each to the owner with the least work. The owner with the most work becomes
// rank 0, so that rank 0's plan is that of the slowest rank.
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

std::vector<MatrixOwners::Group> grouped(const std::vector<std::vector<const MatrixTensor*>>& rounds, int64_t at_once) {
  std::vector<MatrixOwners::Group> groups;
  std::vector<int64_t> sizes;
  for (size_t j = 0; j < rounds.size(); ++j) {
    bool fits = !groups.empty();
    for (size_t k = 0; k < rounds[j].size() && fits; ++k)
      fits = !rounds[j][k] || sizes[k] + rounds[j][k]->numel <= at_once;
    if (!fits) groups.push_back({j, j}), sizes.assign(rounds[j].size(), 0);
    for (size_t k = 0; k < rounds[j].size(); ++k) sizes[k] += rounds[j][k] ? rounds[j][k]->numel : 0;
    ++groups.back().last;
  }
  return groups;
}

}  // namespace

double WholeMatrix::cost() const {
  return Orthogonalize::flops({.y = Tensor{nullptr, DType::bf16, {rows, cols}}, .x = {}}, 1);
}

double MatrixTensor::cost() const {
  return std::transform_reduce(matrices.begin(), matrices.end(), 0.0, std::plus{}, std::mem_fn(&WholeMatrix::cost));
}

MatrixOwners::MatrixOwners(const ParamStore& params, const Placed& placed, const ProcessMesh& mesh, int64_t at_once,
                           int numbers_state)
    : params_(params), grid_(mesh.grid_of_weights()), ranks_(mesh.weights().size()) {
  const auto pieces = params.pieces();
  for (const UpdateRange& r : placed.ranges) {
    const ParamStore::Piece& piece = pieces[r.piece];
    const Shape& shape = piece.slice->shape;
    const int64_t numbers =
        numbers_state < 0 ? 0 : params.units()[r.unit]->states[size_t(numbers_state)].first_of(r.piece);
    MatrixTensor& tensor = tensors_.emplace_back(MatrixTensor{r.unit, shape.numel(), &params.placement({piece.param})});
    tensor.matrices = matrices_of(params.specs()[size_t(piece.param)], shape, numbers);
    set_parts(tensor, params, piece, grid_);
    gathers_ = gathers_ || grid_.size(tensor.placement->shards) > 1 ||
               std::ranges::any_of(tensor.parts, [](const auto& part) { return part.first > 0; });
  }
  rounds_ = deal_out(tensors_, ranks_);
  groups_ = grouped(rounds_, at_once);
}

MatrixOwners::Held MatrixOwners::held(const MatrixTensor& t, int k) const {
  const MatrixTensor::Part& part = t.parts[size_t(grid_.index(k, t.placement->cuts))];
  const ParamStore::Unit& unit = *params_.units()[t.unit];
  const int64_t share = unit.layout.numel / unit.shards, first = share * grid_.index(k, t.placement->shards);
  const int64_t begin = std::max(part.range.begin, first);
  const int64_t end = std::max(begin, std::min(part.range.end, first + share));
  return {{begin, end}, part.at + begin - part.range.begin};
}

bool MatrixOwners::gives(const MatrixTensor& t, int owner, int k) const {
  const int mine = grid_.index(k, t.placement->cuts), of_owner = grid_.index(owner, t.placement->cuts),
            first = t.parts[size_t(mine)].first;
  const auto of_copy = t.placement->cuts | t.placement->shards;
  const bool same_copy = grid_.with(k, of_copy, 0) == grid_.with(owner, of_copy, 0);
  return same_copy && mine == (t.parts[size_t(of_owner)].first == first ? of_owner : first);
}

std::vector<MatrixExchange> MatrixOwners::exchanges(size_t size) const {
  std::vector<MatrixExchange> all;
  if (ranks_ == 1) return all;
  for (const Group& group : groups_)
    for (size_t j = group.first; j < group.last; ++j) {
      MatrixExchange averages{.exposed = group.first == 0}, updates{.exposed = group.last == rounds()};
      for (int owner = 0; owner < ranks_; ++owner) {
        const MatrixTensor* t = rounds_[j][size_t(owner)];
        for (int k = 0; t && k < ranks_; ++k) {
          const int64_t bytes = held(*t, k).size() * int64_t(size);
          if (k == owner || bytes == 0) continue;
          if (gives(*t, owner, k)) averages.parts.push_back({k, owner, bytes});
          updates.parts.push_back({owner, k, bytes});
        }
      }
      if (gathers()) all.push_back(std::move(averages));
      all.push_back(std::move(updates));
    }
  return all;
}

}  // namespace athanor
