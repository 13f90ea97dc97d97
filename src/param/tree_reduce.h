// Sums over ranks in a fixed binary tree: neighbours first, then pairs of neighbours, and so on, each sum rounded to
// the tensor's dtype. Summing 8 values over 8 ranks, or over 4 ranks that each added 2 of them before, gives the same
// bits. Uses recursive halving, so traffic is that of a ring; group sizes are powers of two.
#pragma once
#include "tape/ctx.h"

namespace athanor {

// full: [size * n]; on return slice rank() holds its sum, and the other slices are undefined.
void tree_reduce_scatter(Ctx&, Communicator& group, const Tensor& full);
// x: [n], n a multiple of the group's size: the sum, on all ranks.
void tree_all_reduce(Ctx&, Communicator& group, const Tensor& x);

}  // namespace athanor
