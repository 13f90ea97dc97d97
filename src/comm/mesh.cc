#include "comm/mesh.h"

#include "comm/background.h"
#include "comm/observed.h"

namespace athanor {
namespace {

// The group also exists with several workers, or with experts on several ranks, so that later groups always have the
// same numbers.
bool has_weights_group(const MeshSizes& sizes) {
  return (sizes.stages > 1 && sizes.tensor > 1) || sizes.workers > 1 || sizes.experts > 1;
}

// A grid with the sizes of these groups along `axes`, and 1 along the others.
RankGrid grid_along(const std::array<std::unique_ptr<Communicator>, kAxes>& groups, Axes axes) {
  std::array<int, kAxes> sizes{};
  for (int a = 0; a < kAxes; ++a) sizes[size_t(a)] = axes.has(Axis(a)) ? groups[size_t(a)]->size() : 1;
  return RankGrid(sizes);
}

}  // namespace

int RankGrid::size(Axes axes) const {
  int product = 1;
  for (int a = 0; a < kAxes; ++a)
    if (axes.has(Axis(a))) product *= sizes_[size_t(a)];
  return product;
}

int RankGrid::index(int rank, Axes axes) const {
  int number = 0, stride = 1;  // over `axes`, starting with the last one
  for (int a = kAxes; a-- > 0; rank /= sizes_[size_t(a)]) {
    if (!axes.has(Axis(a))) continue;
    number += rank % sizes_[size_t(a)] * stride;
    stride *= sizes_[size_t(a)];
  }
  return number;
}

int RankGrid::with(int rank, Axes axes, int index) const {
  int number = 0, stride = 1;  // over all axes
  for (int a = kAxes; a-- > 0; rank /= sizes_[size_t(a)]) {
    const int n = sizes_[size_t(a)], coord = axes.has(Axis(a)) ? index % n : rank % n;
    if (axes.has(Axis(a))) index /= n;
    number += coord * stride;
    stride *= n;
  }
  return number + rank * stride;  // `rank` is now the number of its grid
}

ProcessMesh::ProcessMesh(std::unique_ptr<Communicator> world, const MeshSizes& sizes,
                         std::unique_ptr<Communicator> background)
    : world_(std::move(world)), background_(std::move(background)) {
  const RankGrid grid(sizes.by_axis());  // grid of each worker
  const int product = sizes.of_worker();
  CHECK(sizes.shards % sizes.experts == 0, sizes.experts, " ranks with other experts in ", sizes.shards, " shards");
  CHECK(sizes.ranks() == world_->size(), "mesh of ", sizes.ranks(), " ranks over a world of ", world_->size());
  // Splits off the ranks that differ from this one only along `axes`. Equal color: equal other coordinates, same
  // worker.
  const auto group = [&](Axes axes) {
    return world_->split(grid.with(world_->rank(), axes, 0), grid.index(world_->rank(), axes));
  };
  for (int a = 0; a < kAxes; ++a) axes_[size_t(a)] = group({Axis(a)});
  data_parallel_ = group(kDataParallel);
  const bool weights = has_weights_group(sizes);
  if (sizes.context > 1 || weights) shards_ = group({Axis::dp_shard, Axis::ep, Axis::cp});
  if (weights) weights_ = group(kDataParallel | Axes{Axis::tp});
  workers_ = sizes.workers > 1 ? world_->split(world_->rank() % product, world_->rank() / product)
                               : world_->split(world_->rank(), 0);
  if (sizes.experts > 1) {
    expert_copies_ = group(kDataParallel - Axes{Axis::ep});
    expert_shards_ = group({Axis::dp_shard, Axis::cp});
  }
  // In reverse order, since NCCL's groups of the same ranks in the same order share a communicator, whose collectives
  // run one after the other.
  if (!sizes.delayed || sizes.workers == 1) return;
  deltas_ = background_ ? make_background(background_->split(world_->rank() % product, -workers_->rank()))
                        : workers_->split(0, -workers_->rank());
}

Communicator& ProcessMesh::weights() const {
  const int tensors = tensor().size();
  if (tensors == 1) return *data_parallel_;
  if (weights_) return *weights_;
  CHECK(world_->size() == data_parallel_->size() * tensors &&
            world_->rank() == data_parallel_->rank() * tensors + tensor().rank(),
        "rank ", world_->rank(), " of ", world_->size(), ": data-parallel and tensor-parallel groups do not cover it");
  return *world_;
}

std::vector<int> ProcessMesh::splits(const MeshSizes& sizes) {
  const std::array<int, kAxes> by_axis = sizes.by_axis();
  std::vector<int> all(by_axis.begin(), by_axis.end());
  const int shards = sizes.shards * sizes.context;
  all.push_back(sizes.copies * shards);
  const bool weights = has_weights_group(sizes);
  if (sizes.context > 1 || weights) all.push_back(shards);
  if (weights) all.push_back(sizes.copies * shards * sizes.tensor);
  all.push_back(sizes.workers);
  if (sizes.experts > 1) {
    all.push_back(sizes.copies * shards / sizes.experts);
    all.push_back(shards / sizes.experts);
  }
  return all;
}

std::string_view group_name(int split) {
  constexpr std::array<std::string_view, kAxes + 6> kNames = {
      "pp",      "dp_replicate",        "dp_shard",       "ep", "cp", "tp", "dp", "dp_shard", "weights",
      "workers", "expert_dp_replicate", "expert_dp_shard"};
  if (split < 0) return "world";
  return split < int(kNames.size()) ? kNames[size_t(split)] : "other";
}

RankGrid ProcessMesh::grid_of_weights() const { return grid_along(axes_, kDataParallel | Axes{Axis::tp}); }

int ProcessMesh::size(Axes axes) const { return grid_along(axes_, axes).size(axes); }

bool ProcessMesh::is_first_except(Axes axes) const {
  for (int a = 0; a < kAxes; ++a)
    if (!axes.has(Axis(a)) && coord(Axis(a)) != 0) return false;
  return true;
}

}  // namespace athanor
