// Host reductions of the ranks' contributions in rank order: the same bits on every rank and in every run.
#pragma once
#include <span>

#include "comm/communicator.h"

namespace athanor {

// out[i] = reduction of parts[0][i], parts[1][i], ... in this order, accumulated in f32 (f64 and integers in their own
// type) and rounded once to dtype. out may alias one of parts. avg of integers is an error.
void reduce_in_order(void* out, std::span<const void* const> parts, int64_t n, DType, Reduce);

}  // namespace athanor
