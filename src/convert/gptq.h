// GPTQ: rounds the columns of a weight one after another and adjusts the following columns to compensate for the error
// on the layer's inputs [Frantar et al. 2023, algorithm 1]. Symmetric integers with one scale per group of a row.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "cpu/thread_pool.h"

namespace athanor {

struct GptqOptions {
  int bits = 4;            // 4 or 8
  int64_t group = 128;     // columns that share a scale; 0 = all columns
  bool act_order = false;  // process columns by descending mean square of their input, instead of in order
  double damping = 0.05;   // fraction of the mean diagonal of the Hessian, added to its diagonal
};

struct GptqMatrix {
  std::vector<uint8_t> quantized;  // [out, in]; value = scale (q - 2^(bits - 1))
  std::vector<float> scales;       // [groups, out], representable in f16
  std::vector<int32_t> group_of;   // [in]: group of each input
};

struct GptqProblem {
  std::vector<float> weight;   // [out, in]
  std::vector<float> hessian;  // [in, in]: sum over tokens of x x^T; symmetric
  int64_t out, in;
  std::string_view what;  // name for errors
};
GptqMatrix quantize_gptq(GptqProblem problem, const GptqOptions&, ThreadPool&);

}  // namespace athanor
