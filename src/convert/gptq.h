// GPTQ: rounds the columns of a weight one after another and moves the columns that follow so that they make up for the
// error on the layer's inputs [Frantar et al. 2023, algorithm 1]. Symmetric codes with one scale per group of a row.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "cpu/thread_pool.h"

namespace athanor {

struct GptqOptions {
  int bits = 4;            // 4 or 8
  int64_t group = 128;     // columns that share a scale; 0: all
  bool act_order = false;  // columns by falling mean square of their input, instead of from first to last
  double damping = 0.05;   // of the mean diagonal of the Hessian, added to it
};

struct GptqMatrix {
  std::vector<uint8_t> codes;     // [out, in]; value = scale (code - 2^(bits - 1))
  std::vector<float> scales;      // [groups, out], values of f16
  std::vector<int32_t> group_of;  // [in]
};

struct GptqProblem {
  std::vector<float> weight;   // [out, in]
  std::vector<float> hessian;  // [in, in]: sum over tokens of x x^T; symmetric
  int64_t out, in;
  std::string_view what;  // for errors
};
GptqMatrix quantize_gptq(GptqProblem problem, const GptqOptions&, ThreadPool&);

}  // namespace athanor
