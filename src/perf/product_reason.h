// Why a product runs below the rate of a large one, in words, from what is known of it: its sizes, tiles and cuts, the
// bytes it moves, the kernel of its epilogue. Shares are those of the model in limit.h.
#pragma once
#include <string>

#include "perf/roofline.h"

namespace athanor {

constexpr double kFastEnough = 0.85;  // of the measured rate; reasons are told below it

struct ProductFacts {
  double m = 0, n = 0, k = 0;
  Cost cost;                    // of one launch
  double seconds = 0;           // of one launch
  double epilogue_seconds = 0;  // of that, in a kernel of its own
  Tiling tiling = {};           // rows 0: not known
};

// limits.multiprocessors 0: nothing is said of tiles. Largest loss first, with the share of the rate that each leaves;
// then what all of them leave unexplained.
std::string why_slow(const ProductFacts&, const Roofline& limits);

}  // namespace athanor
