// Reductions of the ranks' contributions on the host, in rank order: the same bits on every rank and in every run.
#pragma once
#include <span>

#include "comm/communicator.h"

namespace athanor {

// out[i] = reduction of parts[0][i], parts[1][i], ... in this order, in f32 (f64 and integers in their own precision),
// rounded to dtype once. out may be one of the parts. avg of integers is refused.
void reduce_in_order(void* out, std::span<const void* const> parts, int64_t n, DType, Reduce);

}  // namespace athanor
