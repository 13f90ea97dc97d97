// Sums over ranks in a fixed binary tree: neighbours first, then pairs of neighbours, and so on, each sum rounded to
// the tensor's dtype. Joining 8 values over 8 ranks, or over 4 ranks of which each joined 2 already, gives the same
// bits. By recursive halving, so every rank sends and receives what a ring would; group sizes are powers of two.
#pragma once
#include "tape/ctx.h"

namespace athanor {

// full: [size * n]; afterwards part rank() of it holds the sum of that part, the others hold nothing of use.
void tree_reduce_scatter(Ctx&, Communicator& group, const Tensor& full);
// x: [n], n a multiple of the group's size: the sum, on all ranks.
void tree_all_reduce(Ctx&, Communicator& group, const Tensor& x);

}  // namespace athanor
