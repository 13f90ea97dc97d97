#include "param/tree_reduce.h"

#include <bit>

namespace athanor {
namespace {

Tensor part_of(const Tensor& full, int part, int parts) {
  const int64_t n = full.numel() / parts;
  return full.slice(part * n, (part + 1) * n);
}

}  // namespace

void tree_reduce_scatter(Ctx& c, Communicator& group, const Tensor& full) {
  const int ranks = group.size(), rank = group.rank();
  CHECK(std::has_single_bit(unsigned(ranks)) && full.numel() % ranks == 0, "a tree of ", ranks, " ranks over ",
        full.shape);
  if (ranks == 1) return;
  Buffer theirs = c.alloc("partial sums of a peer", full.dtype, {full.numel() / ranks});
  // After the round with distance d, slices whose index equals this rank modulo 2d are summed over 2d ranks.
  for (int d = 1; d < ranks; d *= 2)
    for (int part = rank % (2 * d); part < ranks; part += 2 * d) {
      const Tensor mine = part_of(full, part, ranks);
      c.exchange(group, part_of(full, part ^ d, ranks), theirs.t, rank ^ d);
      c.run(Add{.y = mine, .a = mine, .b = theirs.t});
    }
}

void tree_all_reduce(Ctx& c, Communicator& group, const Tensor& x) {
  tree_reduce_scatter(c, group, x);
  c.all_gather(group, x, part_of(x, group.rank(), group.size()));
}

}  // namespace athanor
