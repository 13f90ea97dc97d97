// Which windows of a data set an evaluation looks at: all of them, or as many as it may, spread evenly over the whole
// of every source. A function of the data set and that number alone, so every evaluation looks at the same ones.
#pragma once
#include <cstdint>
#include <vector>

#include "data/dataset.h"

namespace athanor {

struct HeldOutWindow {
  int64_t source, window;
};

struct HeldOut {
  std::vector<HeldOutWindow> windows;  // by source, then by place
  int64_t all = 0;                     // windows that there are
};

// most: windows; 0 = all. Sources share them out by their weights, as training does; no window comes twice.
HeldOut held_out(const Dataset&, int64_t most);

}  // namespace athanor
