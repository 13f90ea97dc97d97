// Placement: where a parameter lives. Which part of it a rank has, which ranks share that part's buffers, and over
// which its gradient is summed. All that depends on these asks here.
#pragma once
#include <algorithm>
#include <vector>

#include "comm/mesh.h"
#include "param/spec.h"

namespace athanor {

// This rank among those that share the products of a layer (ProcessMesh::tensor()).
struct TensorRank {
  int ranks = 1, rank = 0;
  bool sequence_parallel = false;
  bool operator==(const TensorRank&) const = default;
};

// This rank among those that have other experts (ProcessMesh::experts()), and among those that share out the buffers of
// the same ones (ProcessMesh::expert_shards()).
struct ExpertRank {
  int ranks = 1, rank = 0;
  int shards = 1, shard = 0;
  bool operator==(const ExpertRank&) const = default;
};

// `count` runs of `length` consecutive elements each: `at` is the first one's place in the tensor of the file, `step`
// the distance to the next; likewise in this rank's part of the tensor, which is stored without gaps.
struct Strips {
  int64_t count = 1, length = 0;
  int64_t at = 0, step = 0;
  int64_t part_at = 0, part_step = 0;
  bool operator==(const Strips&) const = default;
};

struct Placement {
  // This rank's part of a tensor in files (ParamSpec::slices); its strips together are the part.
  struct Slice {
    int64_t offset = 0, numel = 0;  // elements, from the start of this rank's part of the parameter
    std::vector<Strips> strips;
  };
  Shape shape;                // of this rank's part, with padding
  std::vector<Slice> slices;  // as ParamSpec::slices
  Axes cuts;                  // along these every rank has another part
  Axes shards;                // these divide the part's flat buffers among them, by the ZeRO stage
  Axes sums;                  // over these the gradient is summed
  Axes stages;                // along these the others have none of it: it is on one pipeline stage
  // The elements of the part from this one on are the same on so many neighbours of those that share a layer, each of
  // which has a part of their gradient's sum.
  int64_t repeated_from = 0;
  int repeats = 1;

  bool is_cut() const { return cuts != Axes{}; }
  bool sums_parts() const { return sums.has(Axis::tp); }  // of those that share a layer, whatever else is summed
  // Ranks with the same shards of the gradient, to be summed.
  int copies(const ProcessMesh& mesh) const { return mesh.size(sums - shards - Axes{Axis::tp}); }
};

// Throws an Error naming the parameter where it cannot be cut.
Placement place(const ParamSpec&, const TensorRank&, int zero_stage, bool on_one_stage = false,
                const ExpertRank& experts = {});

// Another rank's Placement: that of the rank with this part, of those along the axes that cut the parameter, whatever
// is sharded.
Placement place_part(const ParamSpec&, const Placement&, int parts, int part);

// Calls fn(at, part_at, length) for the runs, or what of them lies in elements [begin, end) of the file's tensor.
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
