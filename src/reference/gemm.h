// The definition of a product, for those of codes too.
#pragma once
#include "ops/gemm.h"
#include "reference/values.h"

namespace athanor {

// op.d from the values of a and b as they lie in memory; without an epilogue.
void multiply(const Gemm& op, Values a, Values b);

}  // namespace athanor
