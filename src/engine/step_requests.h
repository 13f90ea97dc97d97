// Step requests: what the host of any rank may ask all ranks for in a step, such as to stop after it. They are added up
// over the ranks together with the step's other scalars, so that every rank reads the same with the step's
// result and no message between hosts is needed.
#pragma once
#include <cstdint>

#include "base/error.h"
#include "ops/optimizer.h"

namespace athanor {

using RequestBits = uint32_t;  // bit w: request w, below kRequests

// A double counts two requests, in 26 bits each: exact sums for less than 2^26 ranks. The largest of such numbers, in
// place of their sum, would lose requests.
constexpr int kRequests = 2 * kRequestSums;
constexpr int64_t kRequestRadix = int64_t{1} << 26;

// This rank's requests, as StepState::requests of a step that is about to close.
inline void write_requests(RequestBits requests, double* sums) {
  CHECK(requests >> kRequests == 0, "requests ", requests, ", expected below ", kRequests, " bits");
  for (int i = 0; i < kRequestSums; ++i)
    sums[i] = double((requests >> (2 * i) & 1) + (requests >> (2 * i + 1) & 1) * uint64_t(kRequestRadix));
}

// The requests of any rank, from the sums over all.
inline RequestBits read_requests(const double* sums) {
  RequestBits any = 0;
  for (int i = 0; i < kRequestSums; ++i) {
    const auto sum = int64_t(sums[i]);
    if (sum % kRequestRadix != 0) any |= RequestBits{1} << (2 * i);
    if (sum / kRequestRadix != 0) any |= RequestBits{1} << (2 * i + 1);
  }
  return any;
}

}  // namespace athanor
