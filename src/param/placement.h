// Placement: where a parameter is stored: the part of it that a rank has, the ranks that shard that part's buffers, and
// the ranks over which its gradient is summed. All code that depends on these uses Placement.
#pragma once
#include <algorithm>
#include <vector>

#include "comm/mesh.h"
#include "param/spec.h"

namespace athanor {

// This rank in its tensor-parallel group (ProcessMesh::tensor()).
struct TensorRank {
  int ranks = 1, rank = 0;
  bool sequence_parallel = false;
  bool operator==(const TensorRank&) const = default;
};

// This rank in its expert-parallel group (ProcessMesh::experts()), and among the ranks that shard the buffers of the
// same experts (ProcessMesh::expert_shards()).
struct ExpertRank {
  int ranks = 1, rank = 0;
  int shards = 1, shard = 0;
  bool operator==(const ExpertRank&) const = default;
};

// `count` runs of `length` consecutive elements. `at` is the index of the first run in the tensor of the file, `step`
// the distance between runs; part_at and part_step are the index and distance in this rank's part of the tensor, which
// is stored without gaps.
struct Strips {
  int64_t count = 1, length = 0;
  int64_t at = 0, step = 0;
  int64_t part_at = 0, part_step = 0;
  bool operator==(const Strips&) const = default;
};

struct Placement {
  // This rank's part of a tensor in files (ParamSpec::slices), as the union of `strips`.
  struct Slice {
    int64_t offset = 0, numel = 0;  // elements, from the start of this rank's part of the parameter
    std::vector<Strips> strips;
  };
  Shape shape;                // shape of this rank's part, with padding
  std::vector<Slice> slices;  // one per entry of ParamSpec::slices
  Axes cuts;                  // axes along which every rank has a different part
  Axes shards;                // axes whose ranks shard the part's flat buffers, by the ZeRO stage
  Axes sums;                  // axes over which the gradient is summed
  Axes stages;                // axes along which only one rank has the parameter: it is on one pipeline stage
  // Elements of the part from this index on are replicated on `repeats` neighbouring tensor-parallel ranks, each of
  // which has a partial sum of their gradient.
  int64_t repeated_from = 0;
  int repeats = 1;

  bool is_cut() const { return cuts != Axes{}; }
  bool is_sharded() const { return shards != Axes{}; }
  bool sums_parts() const { return sums.has(Axis::tp); }  // true if gradients are summed over tensor-parallel ranks
  // Number of ranks that have the same shard of the gradient, and sum it.
  int copies(const ProcessMesh& mesh) const { return mesh.size(sums - shards - Axes{Axis::tp}); }
};

// Throws an Error naming the parameter if it cannot be sliced.
Placement place(const ParamSpec&, const TensorRank&, int zero_stage, bool on_one_stage = false,
                const ExpertRank& experts = {});

// Returns the Placement of the rank that has part `part`, out of `parts` along the axes that slice the parameter,
// ignoring sharding.
Placement place_part(const ParamSpec&, const Placement&, int parts, int part);

// Calls fn(at, part_at, length) for the portion of each run within elements [begin, end) of the file's tensor.
template <class Fn>
void for_each_run(const std::vector<Strips>& all, int64_t begin, int64_t end, Fn&& fn) {
  for (const Strips& s : all) {
    const int64_t skipped = s.count > 1 && begin > s.at ? (begin - s.at) / s.step : 0;
    for (int64_t i = skipped; i < s.count && s.at + i * s.step < end; ++i) {
      const int64_t from = std::max(begin, s.at + i * s.step), to = std::min(end, s.at + i * s.step + s.length);
      if (from < to) fn(from, s.part_at + i * s.part_step + from - (s.at + i * s.step), to - from);
    }
  }
}

}  // namespace athanor
