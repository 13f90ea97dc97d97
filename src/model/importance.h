// Input statistics of linear layers on calibration text: sums over tokens of each input's square. Their means weight
// the columns of the layer's weight when it is quantized.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace athanor {

struct InputSquares {
  std::vector<double> sums;  // [K]
  int64_t tokens = 0;
  // Computed in f32, so that a file that stores sums and tokens in f32 gives the same means. All 1 for an expert that
  // got no token, as in llama.cpp.
  std::vector<float> means() const {
    if (tokens == 0) return std::vector<float>(sums.size(), 1);
    std::vector<float> means;
    for (const double sum : sums) means.push_back(float(sum) / float(tokens));
    return means;
  }
};

// Keys: the weight's name in Hugging Face's files; the parts of a fused weight have the same inputs.
using Importance = std::map<std::string, InputSquares>;

}  // namespace athanor
