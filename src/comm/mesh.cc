#include "comm/mesh.h"

namespace athanor {

ProcessMesh::ProcessMesh(std::unique_ptr<Communicator> world, std::array<int, kAxes> sizes) : world_(std::move(world)) {
  int product = 1;
  for (int s : sizes) product *= s;
  CHECK(product == world_->size(), "mesh of ", product, " ranks over a world of ", world_->size());
  int stride = product;
  for (int a = 0; a < kAxes; ++a) {
    stride /= sizes[size_t(a)];
    const int coord = world_->rank() / stride % sizes[size_t(a)];
    axes_[size_t(a)] = world_->split(world_->rank() - coord * stride, coord);  // same color: equal other coordinates
  }
}

}  // namespace athanor
