// The definition of a GEMM, shared by Gemm and ScaledGemm.
#pragma once
#include "ops/gemm.h"
#include "reference/values.h"

namespace athanor {

// Computes op.d from a and b, given in their memory layout; ignores the epilogue.
void multiply(const Gemm& op, Values a, Values b);

}  // namespace athanor
