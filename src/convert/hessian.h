// The Hessian of a linear layer's squared output error on calibration text, H = sum over tokens of x x^T, and the
// triangular factor of its inverse, with which GPTQ and SparseGPT adjust the columns not yet processed.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "cpu/thread_pool.h"

namespace athanor {

// Rows of a weight processed together, so that each row of the factor is reused while it is in cache.
inline constexpr int64_t kRowsTogether = 16;

// Square matrix, row-major.
struct Square {
  std::vector<float> values;
  int64_t size;
  float* row(int64_t i) { return values.data() + i * size; }
  const float* row(int64_t i) const { return values.data() + i * size; }
  float& at(int64_t i, int64_t j) { return values[size_t(i * size + j)]; }
  float at(int64_t i, int64_t j) const { return values[size_t(i * size + j)]; }
};

// Returns the inputs that are always 0, and sets their diagonal elements to 1.
std::vector<int64_t> dead_inputs(Square& h);

// Returns upper-triangular U with (H + damping mean(diag H) 1)^-1 = U^T U. Raises the damping until H is positive
// definite; an Error naming `what` if that never happens.
Square inverse_factor(const Square& h, double damping, std::string_view what, ThreadPool&);

}  // namespace athanor
