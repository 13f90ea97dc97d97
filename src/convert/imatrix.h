// Writes importance matrices in the format of llama.cpp's imatrix tool, for its quantizer.
#pragma once
#include <string>
#include <vector>

#include "model/importance.h"

namespace athanor {

struct ImatrixSource {
  std::vector<std::string> datasets;
  int64_t windows, window_tokens;
};
void write_imatrix(const Importance&, const ImatrixSource&, const std::string& path);

}  // namespace athanor
