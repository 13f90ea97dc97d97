// The windows of a data set used for evaluation: all, or a given number spread evenly over every source. Depends only
// on the data set and that number, so every evaluation uses the same windows.
#pragma once
#include <cstdint>
#include <vector>

#include "data/dataset.h"

namespace athanor {

struct HeldOutWindow {
  int64_t source, window;
};

struct HeldOut {
  std::vector<HeldOutWindow> windows;  // by source, then by position
  int64_t all = 0;                     // windows available
};

// most: maximum number of windows; 0 = all. Divided among sources by weight, as in training, without repetition.
HeldOut held_out(const Dataset&, int64_t most);

}  // namespace athanor
