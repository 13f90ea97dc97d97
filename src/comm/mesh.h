// ProcessMesh: every parallelism axis always exists; an axis of size 1 is a group of one, so no code asks "is TP on?".
// Only param/placement.h says along which axes a parameter is sharded, shared or summed; all other code asks the mesh
// for a group by what its ranks share, and names no axis (scripts/check_layers.py).
#pragma once
#include <array>
#include <initializer_list>
#include <memory>
#include <vector>

#include "comm/communicator.h"

namespace athanor {

enum class Axis : uint8_t { pp, dp_replicate, dp_shard, ep, cp, tp };
constexpr int kAxes = 6;

// Number of ranks along each axis, in the order of the axes: a world is a grid whose last axis varies fastest. Within
// dp_shard, each group of `experts` consecutive ranks splits the experts of a model and forms an axis of its own (ep).
struct MeshSizes {
  int stages = 1, copies = 1, shards = 1, context = 1, tensor = 1;
  int experts = 1;  // size of ep; divides shards
  // Number of workers of local updates (optim/outer_optimizer.h): each has consecutive ranks, which form a grid of
  // their own.
  int workers = 1;
  bool delayed = false;  // workers send their deltas while they train: deltas() has a communicator of its own
  int of_worker() const { return stages * copies * shards * context * tensor; }
  int ranks() const { return workers * of_worker(); }
  std::array<int, kAxes> by_axis() const { return {stages, copies, shards / experts, experts, context, tensor}; }
  bool operator==(const MeshSizes&) const = default;
};

// A set of axes.
class Axes {
 public:
  constexpr Axes() = default;
  constexpr Axes(std::initializer_list<Axis> axes) {
    for (const Axis axis : axes) bits_ |= bit(axis);
  }
  constexpr bool has(Axis axis) const { return (bits_ & bit(axis)) != 0; }
  constexpr Axes operator|(Axes other) const { return Axes(bits_ | other.bits_); }
  constexpr Axes operator-(Axes other) const { return Axes(bits_ & ~other.bits_); }
  bool operator==(const Axes&) const = default;

 private:
  static constexpr unsigned bit(Axis axis) { return 1U << static_cast<unsigned>(axis); }
  constexpr explicit Axes(unsigned bits) : bits_(bits) {}
  unsigned bits_ = 0;
};

// Numbers ranks on a grid of axes, of which the last one varies fastest; the next grid has the next numbers.
class RankGrid {
 public:
  explicit RankGrid(const std::array<int, kAxes>& sizes) : sizes_(sizes) {}
  int size(Axes) const;             // number of ranks that differ only along these axes
  int index(int rank, Axes) const;  // position of a rank among these
  // The rank at position `index` among those that differ from `rank` only along these axes.
  int with(int rank, Axes, int index) const;

 private:
  std::array<int, kAxes> sizes_;
};

// Ranks that differ along kBatchAxes read different sequences. Ranks that differ along kDataParallel, which adds cp,
// compute different tokens, so their gradients are summed.
constexpr Axes kBatchAxes{Axis::dp_replicate, Axis::dp_shard, Axis::ep};
constexpr Axes kDataParallel = kBatchAxes | Axes{Axis::cp};

class ProcessMesh {
 public:
  // sizes.ranks() must equal world's size. background: the same ranks over a wire of their own, for deltas() in the
  // background; null: deltas() run in the stream that they are given.
  ProcessMesh(std::unique_ptr<Communicator> world, const MeshSizes& sizes,
              std::unique_ptr<Communicator> background = nullptr);
  Communicator& world() { return *world_; }
  Communicator& operator[](Axis axis) { return *axes_[static_cast<size_t>(axis)]; }
  int coord(Axis axis) const { return axes_[static_cast<size_t>(axis)]->rank(); }
  Communicator& stages() const { return group(Axis::pp); }            // ranks with other blocks of the same model
  Communicator& tensor() const { return group(Axis::tp); }            // ranks that split the GEMMs of a layer
  Communicator& context() const { return group(Axis::cp); }           // ranks that split sequences
  Communicator& copies() const { return group(Axis::dp_replicate); }  // ranks with the same shards
  Communicator& experts() const { return group(Axis::ep); }           // ranks with other experts of the same layers
  // Ranks of data_parallel(), and of shards(), that have the same experts.
  Communicator& expert_copies() const { return expert_copies_ ? *expert_copies_ : *data_parallel_; }
  Communicator& expert_shards() const { return expert_shards_ ? *expert_shards_ : shards(); }
  // Ranks of all workers that have the same shard of the weights; all other groups are within a worker.
  Communicator& workers() const { return *workers_; }
  // Communicator of the ranks of workers() for collectives that overlap those of workers().
  Communicator& deltas() const { return deltas_ ? *deltas_ : *workers_; }
  // Number of ranks, or groups of ranks, with different sequences.
  int batches() const { return workers().size() * size(kBatchAxes); }
  // Group along all axes of kDataParallel: the ranks that split a batch, or its sequences.
  Communicator& data_parallel() const { return *data_parallel_; }
  // All ranks that have shards of a stage's weights: data_parallel() and tensor() together. A rank's number is
  // data_parallel().rank() * tensor().size() + tensor().rank().
  Communicator& weights() const;
  RankGrid grid_of_weights() const;
  // Ranks of data_parallel() across which ZeRO shards: dp_shard, ep and cp together.
  Communicator& shards() const { return shards_ ? *shards_ : group(Axis::dp_shard); }
  // Number of ranks of a worker that differ only along these axes.
  int size(Axes axes) const;
  // True if this rank has coordinate 0 along all axes except `axes`.
  bool is_first_except(Axes axes) const;
  // Sizes of the groups that the constructor splits from the world, in this order.
  static std::vector<int> splits(const MeshSizes& sizes);

 private:
  Communicator& group(Axis axis) const { return *axes_[static_cast<size_t>(axis)]; }
  std::unique_ptr<Communicator> world_, background_;
  std::array<std::unique_ptr<Communicator>, kAxes> axes_;
  std::unique_ptr<Communicator> data_parallel_, shards_;  // shards_: null if dp_shard's group has the same ranks
  std::unique_ptr<Communicator> weights_;                 // null unless pp and tp, or workers, or experts are several
  std::unique_ptr<Communicator> workers_, deltas_;        // deltas_: null unless MeshSizes::delayed
  std::unique_ptr<Communicator> expert_copies_, expert_shards_;  // null if all ranks have all experts
};

}  // namespace athanor
