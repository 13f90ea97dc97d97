#include "comm/mesh.h"

namespace athanor {

ProcessMesh::ProcessMesh(std::unique_ptr<Communicator> world, std::array<int, kAxes> sizes) : world_(std::move(world)) {
  int product = 1;
  for (int s : sizes) product *= s;
  CHECK(product == world_->size(), "mesh of ", product, " ranks over a world of ", world_->size());
  int stride = product, batch_key = 0, batch_offset = 0;
  for (int a = 0; a < kAxes; ++a) {
    stride /= sizes[size_t(a)];
    const int coord = world_->rank() / stride % sizes[size_t(a)];
    axes_[size_t(a)] = world_->split(world_->rank() - coord * stride, coord);  // same color: equal other coordinates
    if (Axis(a) != Axis::dp_replicate && Axis(a) != Axis::dp_shard) continue;
    batch_key = batch_key * sizes[size_t(a)] + coord;
    batch_offset += coord * stride;
  }
  data_parallel_ = world_->split(world_->rank() - batch_offset, batch_key);
}

int ProcessMesh::size(Axes axes) const {
  int product = 1;
  for (int a = 0; a < kAxes; ++a)
    if (axes.has(Axis(a))) product *= axes_[size_t(a)]->size();
  return product;
}

bool ProcessMesh::is_first_except(Axes axes) const {
  for (int a = 0; a < kAxes; ++a)
    if (!axes.has(Axis(a)) && coord(Axis(a)) != 0) return false;
  return true;
}

}  // namespace athanor
