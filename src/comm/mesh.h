// ProcessMesh: every parallelism axis always exists; an axis of size 1 is a group of one, so no code asks "is TP on?".
#pragma once
#include <array>
#include <memory>

#include "comm/communicator.h"

namespace athanor {

enum class Axis : uint8_t { pp, dp_replicate, dp_shard, cp, tp, ep };
constexpr int kAxes = 6;

class ProcessMesh {
 public:
  // Splits world into a grid whose last axis varies fastest; the product of the sizes must equal world's size.
  ProcessMesh(std::unique_ptr<Communicator> world, std::array<int, kAxes> sizes);
  Communicator& world() { return *world_; }
  Communicator& operator[](Axis axis) { return *axes_[static_cast<size_t>(axis)]; }
  int coord(Axis axis) const { return axes_[static_cast<size_t>(axis)]->rank(); }
  // Both data-parallel axes together: the ranks that share a batch.
  Communicator& data_parallel() const { return *data_parallel_; }

 private:
  std::unique_ptr<Communicator> world_;
  std::array<std::unique_ptr<Communicator>, kAxes> axes_;
  std::unique_ptr<Communicator> data_parallel_;
};

}  // namespace athanor
