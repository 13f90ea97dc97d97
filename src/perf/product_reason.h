// Why a product runs below the rate of a large one, in words, from what is known of it: its sizes, tiles and cuts, the
// bytes it moves, the kernel of its epilogue. Shares are those of the model in roofline.h.
#pragma once
#include <string>

#include "perf/roofline.h"

namespace athanor {

constexpr double kFastEnough = 0.85;  // fraction of the measured rate; reasons are given below it

struct ProductFacts {
  double m = 0, n = 0, k = 0;
  Cost cost;                    // of one launch
  double seconds = 0;           // of one launch
  double epilogue_seconds = 0;  // of that, in kernels of their own: of an epilogue, or that prepare codes
  double epilogue_bytes = 0;    // Launch::epilogue_bytes
  bool codes = false;
  Tiling tiling = {};  // rows 0: unknown
};

// Largest loss first, each with the fraction of the rate that remains, then the unexplained rest. Without
// limits.multiprocessors (0) says nothing about tiles. limits: Roofline::of() the product's factors.
std::string why_slow(const ProductFacts&, const Roofline& limits);

}  // namespace athanor
