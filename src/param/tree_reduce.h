// Sums over ranks in a fixed binary tree: neighbours first, then pairs of neighbours, and so on, each sum rounded to
// the tensor's dtype. Summing 8 values over 8 ranks gives the same bits as over 4 ranks that each added 2 of them
// first. Uses recursive halving, which sends as many bytes as a ring; group sizes are powers of two.
#pragma once
#include "tape/ctx.h"

namespace athanor {

// full: [size * n]; on return slice rank() holds its sum, and the other slices are undefined.
void tree_reduce_scatter(Ctx&, Communicator& group, const Tensor& full);
// Replaces x [n] by its sum on all ranks; n is a multiple of the group's size.
void tree_all_reduce(Ctx&, Communicator& group, const Tensor& x);

}  // namespace athanor
