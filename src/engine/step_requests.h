// Step requests: requests that any rank's host can make of all ranks in a step, such as to stop after it. They are
// summed over the ranks together with the step's other scalars, so every rank gets the same requests with the step's
// result, and hosts need no messages.
#pragma once
#include <cstdint>

#include "base/error.h"
#include "ops/optimizer.h"

namespace athanor {

using RequestBits = uint32_t;  // bit w: request w, below kRequests

// A double counts two requests, in 26 bits each: sums are exact for less than 2^26 ranks. A max instead of the sum
// would lose requests.
constexpr int kRequests = 2 * kRequestSums;
constexpr int64_t kRequestRadix = int64_t{1} << 26;

// Writes this rank's requests as StepState::requests of a step that is about to close.
inline void write_requests(RequestBits requests, double* sums) {
  CHECK(requests >> kRequests == 0, "requests ", requests, ", expected below ", kRequests, " bits");
  for (int i = 0; i < kRequestSums; ++i)
    sums[i] = double((requests >> (2 * i) & 1) + (requests >> (2 * i + 1) & 1) * uint64_t(kRequestRadix));
}

// Returns the requests of any rank, from the sums over all ranks.
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
