// The tree along which ranks exchange messages: rank 0 is its root, and the children of rank r are the ranks r *
// fan_out + 1 ... r * fan_out + fan_out. No rank talks to more than fan_out + 1 others, and 1,024 ranks are three
// levels deep.
#pragma once
#include <algorithm>
#include <vector>

namespace athanor {

constexpr int kFanOut = 16;  // with up to 17 ranks, all others are children of rank 0

struct RankTree {
  int ranks = 1, fan_out = kFanOut;

  int parent(int rank) const { return (rank - 1) / fan_out; }  // rank > 0
  int first_child(int rank) const { return std::min(ranks, rank * fan_out + 1); }
  int end_child(int rank) const { return std::min(ranks, rank * fan_out + 1 + fan_out); }
  bool is_leaf(int rank) const { return first_child(rank) == ranks; }
  bool is_flat() const { return ranks <= fan_out + 1; }
  // Whether `rank` is in the subtree whose root is `above`.
  bool is_below(int rank, int above) const {
    while (rank > above) rank = parent(rank);
    return rank == above;
  }
  // The subtree of a rank: the rank itself, then its first child's subtree, then the next child's.
  std::vector<int> subtree(int rank) const {
    std::vector<int> all = {rank};
    for (int child = first_child(rank); child < end_child(rank); ++child) {
      const std::vector<int> below = subtree(child);
      all.insert(all.end(), below.begin(), below.end());
    }
    return all;
  }
};

}  // namespace athanor
