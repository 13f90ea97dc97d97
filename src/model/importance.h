// What linear layers read on calibration text: sums of the squares of each input over tokens. Their means weigh the
// columns of the layer's weight where it is quantized.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace athanor {

struct InputSquares {
  std::vector<double> sums;  // [K]
  int64_t tokens = 0;
  // In f32 throughout, so that they follow from a file that has both in f32.
  std::vector<float> means() const {
    std::vector<float> means;
    for (const double sum : sums) means.push_back(float(sum) / float(tokens));
    return means;
  }
};

// By the name of the weight in Hugging Face's files; the parts of a fused weight have the same inputs.
using Importance = std::map<std::string, InputSquares>;

}  // namespace athanor
